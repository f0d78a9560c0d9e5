#define PALMETTE_LEVEL avx512bf16
#define PALMETTE_LEVEL_NAME "avx512bf16"
#define PALMETTE_TABLE table_avx512bf16
#include "level.inc"
