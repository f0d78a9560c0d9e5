"""What runs programs: states, branches, batches, backends. asyncio inside."""
