#define PALMETTE_LEVEL avx512
#define PALMETTE_LEVEL_NAME "avx512"
#define PALMETTE_TABLE table_avx512
#include "level.inc"
