// Threads, memory and messages. Compiled once, for any processor.
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>

#include "team_new.h"

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("yield")
#else
#define RELAX() ((void)0)
#endif

// A core that is shared with others may not have all threads of the team on it: nobody spins for long.
enum { SPINS = 4000, YIELDS = 200 };

// A number that threads wait on to change: they spin, then give their slice away, then sleep.
struct Gate {
  alignas(64) int value = 0;
  alignas(64) int sleepers = 0;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t moved = PTHREAD_COND_INITIALIZER;

  int now() const { return __atomic_load_n(&value, __ATOMIC_ACQUIRE); }

  void leave(int seen, const pal::Soon* soon = nullptr, int pieces = 0) {
    for (int piece = 0; piece < pieces; piece++) {
      for (size_t i = 0; i < soon[piece].bytes; i += 64) {
        if (now() != seen) return;
        __builtin_prefetch(soon[piece].at + i, 0, 2);
      }
    }
    for (int i = 0; i < SPINS; i++) {
      if (now() != seen) return;
      RELAX();
    }
    for (int i = 0; i < YIELDS; i++) {
      if (now() != seen) return;
      sched_yield();
    }
    pthread_mutex_lock(&mutex);
    __atomic_fetch_add(&sleepers, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&value, __ATOMIC_SEQ_CST) == seen) pthread_cond_wait(&moved, &mutex);
    __atomic_fetch_sub(&sleepers, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&mutex);
  }

  void open() {
    __atomic_fetch_add(&value, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&sleepers, __ATOMIC_SEQ_CST)) return;
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&moved);
    pthread_mutex_unlock(&mutex);
  }
};

struct pal_team {
  int threads;
  const pal_level_table* level;
  Gate start, barrier;
  alignas(64) int arrived = 0;
  bool stop = false;
  void (*fn)(void*, int) = nullptr;
  void* argument = nullptr;
  pid_t process = 0;
  pthread_mutex_t one_call = PTHREAD_MUTEX_INITIALIZER;
  struct Worker {
    pal_team* team;
    int number, seen;
    pthread_t thread;
  }* workers = nullptr;
};

namespace pal {

static thread_local char message[400];

int fail(int code, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return code;
}
const char* last_message() { return message; }

void* allocate(size_t bytes) {
  // Huge pages only where most of the last one is used: a weight must not take much more than its size.
  const size_t huge = (size_t)2 << 20;
  bool large = bytes >= 4 * huge;
  void* memory = nullptr;
  if (posix_memalign(&memory, large ? huge : 64, bytes ? bytes : 64)) return nullptr;
#if defined(MADV_HUGEPAGE)
  if (large) madvise(memory, bytes / huge * huge, MADV_HUGEPAGE);
#endif
  return memory;
}
void release(void* memory) { free(memory); }

int team_threads(const pal_team* team) { return team->threads; }
const pal_level_table* team_level(const pal_team* team) { return team->level; }

void team_barrier(pal_team* team, const Soon* soon, int pieces) {
  if (team->threads == 1) return;
  int seen = team->barrier.now();
  if (__atomic_add_fetch(&team->arrived, 1, __ATOMIC_ACQ_REL) == team->threads) {
    __atomic_store_n(&team->arrived, 0, __ATOMIC_RELAXED);
    team->barrier.open();
  } else {
    team->barrier.leave(seen, soon, pieces);
  }
}

static void* work(void* argument) {
  pal_team::Worker* worker = (pal_team::Worker*)argument;
  pal_team* team = worker->team;
  for (int seen = worker->seen;; seen++) {
    team->start.leave(seen);
    if (__atomic_load_n(&team->stop, __ATOMIC_RELAXED)) return nullptr;
    team->fn(team->argument, worker->number);
    team_barrier(team);
  }
}

// Start the workers; false if the system grants no more threads (the team is then smaller).
static bool start_workers(pal_team* team) {
  int seen = team->start.now();
  for (int i = 1; i < team->threads; i++) {
    team->workers[i] = {team, i, seen, {}};
    if (pthread_create(&team->workers[i].thread, nullptr, work, &team->workers[i])) {
      team->threads = i;
      return false;
    }
  }
  return true;
}

void team_run(pal_team* team, void (*fn)(void*, int), void* argument) {
  if (team->threads == 1) return fn(argument, 0);
  pthread_mutex_lock(&team->one_call);
  if (team->process != getpid()) {  // a fork took the memory along, but not the threads
    team->process = getpid();
    team->arrived = 0;
    team->start.sleepers = team->barrier.sleepers = 0;
    start_workers(team);
  }
  team->fn = fn;
  team->argument = argument;
  team->start.open();
  fn(argument, 0);
  team_barrier(team);
  pthread_mutex_unlock(&team->one_call);
}

static void stop_workers(pal_team* team) {
  if (team->process == getpid() && team->threads > 1) {
    __atomic_store_n(&team->stop, true, __ATOMIC_RELAXED);
    team->start.open();
    for (int i = 1; i < team->threads; i++) pthread_join(team->workers[i].thread, nullptr);
  }
  free(team->workers);
  delete team;
}

pal_team* new_team(int threads, const pal_level_table* level) {
  pal_team* team = new (std::nothrow) pal_team;
  if (team) team->workers = (pal_team::Worker*)calloc((size_t)threads, sizeof(pal_team::Worker));
  if (!team || !team->workers) {
    delete team;
    fail(PAL_NO_MEMORY, "no memory for a team of %d threads", threads);
    return nullptr;
  }
  team->threads = threads;
  team->level = level;
  team->process = getpid();
  if (!start_workers(team)) {
    fail(PAL_NO_MEMORY, "the system starts no more than %d of %d threads", team->threads, threads);
    stop_workers(team);
    return nullptr;
  }
  return team;
}
void free_team(pal_team* team) {
  if (team) stop_workers(team);
}

}  // namespace pal
