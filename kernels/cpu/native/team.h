// A team of threads that run phases together, and memory and messages for the level files, which use no std:: parts.
#ifndef PALMETTE_TEAM_H
#define PALMETTE_TEAM_H

#include <stddef.h>
#include <stdint.h>

#include "palmette_cpu.h"

struct pal_level_table;
struct pal_team;

namespace pal {

// Chunks of a phase's work are taken from a counter. One a cache line, so that two counters never share one.
struct alignas(64) Counter {
  int64_t value;
};

// The next number of the counter, from 0; every number is handed out once.
static inline int64_t take(Counter* counter) { return __atomic_fetch_add(&counter->value, 1, __ATOMIC_RELAXED); }

// Memory that a thread will read after a barrier.
struct Soon {
  const char* at;
  size_t bytes;
};

// Run fn(argument, thread) in every thread of the team, thread = 0 (the caller) .. threads - 1; returns when all have
// returned. Calls from several threads on one team wait for each other.
void team_run(pal_team*, void (*fn)(void* argument, int thread), void* argument);
// Inside team_run: wait until every thread of the team is here. What they wrote before it is seen after it. Who waits
// asks for the pieces of memory `soon` meanwhile.
void team_barrier(pal_team*, const Soon* soon = nullptr, int pieces = 0);
int team_threads(const pal_team*);
const pal_level_table* team_level(const pal_team*);

// Memory aligned to 64 bytes, not zeroed; large pieces on huge pages where the system grants them. NULL when it is out.
void* allocate(size_t bytes);
void release(void* memory);
// Keep a message for pal_error() of this thread; returns `code`.
int fail(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace pal
#endif
