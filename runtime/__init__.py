"""The engine: requests, scheduler, constraints, sampling, models. Import the module that you need."""
