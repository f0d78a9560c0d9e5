// Chooses a level and exports the C interface: arguments are checked here, the work is the level's.
#include <stdlib.h>
#include <string.h>

#include <new>

#include "level_table.h"
#include "palmette_cpu.h"
#include "team_new.h"
#include "weight.h"

using namespace pal;

namespace pal {
// Which of them are linked in, setup.py says.
extern const pal_level_table table_portable, table_avx2, table_avx512, table_avx512bf16, table_dotprod;
}  // namespace pal

#if defined(PALMETTE_HAVE_DOTPROD) && defined(__linux__)
#include <sys/auxv.h>
static bool has_dotprod() { return getauxval(AT_HWCAP) & (1 << 20); }  // HWCAP_ASIMDDP
#else
static bool has_dotprod() { return false; }
#endif

namespace {

struct Level {
  const pal_level_table* table;
  bool runs;
};

// Worst first.
struct Levels {
  Level level[8];
  int count = 0;
  char names[100] = "";

  void add(const pal_level_table* table, bool runs) {
    level[count++] = {table, runs};
    if (!runs) return;
    if (names[0]) strcat(names, " ");
    strcat(names, table->name);
  }

  Levels() {
    add(&table_portable, true);
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vnni");
    (void)avx512;
#if defined(PALMETTE_HAVE_AVX2)
    add(&table_avx2, avx2);
#endif
#if defined(PALMETTE_HAVE_AVX512)
    add(&table_avx512, avx512);
#endif
#if defined(PALMETTE_HAVE_AVX512BF16)
    add(&table_avx512bf16, avx512 && __builtin_cpu_supports("avx512bf16"));
#endif
#endif
#if defined(PALMETTE_HAVE_DOTPROD)
    add(&table_dotprod, has_dotprod());
#endif
    (void)has_dotprod;
  }

  // The level of this name, or the best; NULL with a message if it cannot be had.
  const pal_level_table* find(const char* name) const {
    if (!name) name = getenv("PALMETTE_CPU");
    const pal_level_table* best = nullptr;
    for (int i = 0; i < count; i++) {
      bool meant = !name || !name[0] || !strcmp(level[i].table->name, name);
      if (meant && level[i].runs) best = level[i].table;
      if (meant && !level[i].runs && name && name[0]) {
        fail(PAL_BAD_ARGUMENT, "this processor lacks the instructions of %s; it runs %s", name, names);
        return nullptr;
      }
    }
    if (!best) fail(PAL_BAD_ARGUMENT, "there is no level %s in this build; it has %s for this processor", name, names);
    return best;
  }
};

const Levels& levels() {
  static const Levels all;
  return all;
}

const char* const FORMAT_NAMES[PAL_FORMATS] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"};

bool known_format(int format) {
  if (format >= 0 && format < PAL_FORMATS) return true;
  fail(PAL_BAD_ARGUMENT, "unknown weight format %d", format);
  return false;
}

bool whole_blocks(int format, int64_t k) {
  int64_t block = format < PAL_Q8_0 ? 1 : format < PAL_Q4_K ? BLOCK : SUPER;
  if (k % block == 0) return true;
  fail(PAL_BAD_ARGUMENT, "%lld elements are no whole number of %s blocks of %lld", (long long)k, FORMAT_NAMES[format],
       (long long)block);
  return false;
}

}  // namespace

extern "C" {

const char* pal_level(void) {
  const pal_level_table* level = levels().find(nullptr);
  return level ? level->name : nullptr;
}
const char* pal_levels(void) { return levels().names; }
const char* pal_error(void) { return last_message(); }

pal_team* pal_team_new(int threads, const char* level) {
  const pal_level_table* table = levels().find(level);
  if (!table) return nullptr;
  if (threads < 1 || threads > 1024) {
    fail(PAL_BAD_ARGUMENT, "a team has 1 to 1024 threads, not %d", threads);
    return nullptr;
  }
  return new_team(threads, table);
}
void pal_team_free(pal_team* team) { free_team(team); }

pal_weight* pal_weight_new(pal_team* team, int64_t k, const pal_part* parts, int count, const float* bias) {
  if (!team || !parts || count < 1 || k < 1) {
    fail(PAL_BAD_ARGUMENT, "a weight has at least one part and k of at least 1");
    return nullptr;
  }
  int64_t n = 0;
  for (int i = 0; i < count; i++) {
    if (!known_format(parts[i].format) || !whole_blocks(parts[i].format, k)) return nullptr;
    if (parts[i].rows < 1 || !parts[i].data) {
      fail(PAL_BAD_ARGUMENT, "part %d of a weight has no rows", i);
      return nullptr;
    }
    n += parts[i].rows;
  }
  pal_weight* w = new (std::nothrow) pal_weight();
  if (w) w->section = (pal_section*)calloc((size_t)count, sizeof(pal_section));
  if (w && bias) w->bias = (float*)allocate((size_t)n * 4);
  if (!w || !w->section || (bias && !w->bias)) {
    fail(PAL_NO_MEMORY, "no memory for a weight of %lld x %lld", (long long)n, (long long)k);
    pal_weight_free(w);
    return nullptr;
  }
  w->level = team_level(team);
  w->k = k;
  w->n = n;
  w->sections = count;
  if (bias) memcpy(w->bias, bias, (size_t)n * 4);
  w->bytes = bias ? n * 4 : 0;
  for (int64_t i = 0, column = 0; i < count; column += parts[i].rows, i++) {
    w->section[i].column = column;
    w->section[i].columns = parts[i].rows;
  }
  if (w->level->pack(team, w, parts)) {
    pal_weight_free(w);
    return nullptr;
  }
  return w;
}

void pal_weight_free(pal_weight* w) {
  if (!w) return;
  for (int i = 0; w->section && i < w->sections; i++) release(w->section[i].data);
  free(w->section);
  release(w->bias);
  delete w;
}
int64_t pal_weight_bytes(const pal_weight* w) { return w->bytes; }

int pal_linear(pal_team* team, const pal_weight* w, const float* x, int64_t rows, float* out, int add) {
  if (!team || !w || rows < 0 || (rows && (!x || !out))) return fail(PAL_BAD_ARGUMENT, "pal_linear: a NULL pointer");
  if (w->level != team_level(team)) {
    return fail(PAL_BAD_ARGUMENT, "the weight was packed for %s, the team runs %s", w->level->name,
                team_level(team)->name);
  }
  return rows ? w->level->linear(team, w, x, rows, out, add) : PAL_OK;
}

int pal_dequantize(int format, const void* data, int64_t count, float* out) {
  if (!known_format(format) || !whole_blocks(format, count)) return PAL_BAD_ARGUMENT;
  if (count < 0 || (count && (!data || !out))) return fail(PAL_BAD_ARGUMENT, "pal_dequantize: a NULL pointer");
  const pal_level_table* level = levels().find(nullptr);
  if (!level) return PAL_BAD_ARGUMENT;
  if (count) level->dequantize(format, data, count, out);
  return PAL_OK;
}

int64_t pal_ceiling(pal_team* team, int format, int64_t rounds) {
  if (!team || !known_format(format)) return -1;
  return team_level(team)->ceiling(team, format, rounds);
}

}  // extern "C"
