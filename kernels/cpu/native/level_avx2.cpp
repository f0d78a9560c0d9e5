#define PALMETTE_LEVEL avx2
#define PALMETTE_LEVEL_NAME "avx2"
#define PALMETTE_TABLE table_avx2
#include "level.inc"
