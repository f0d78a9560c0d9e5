#define PALMETTE_LEVEL portable
#define PALMETTE_LEVEL_NAME "portable"
#define PALMETTE_TABLE table_portable
#include "level.inc"
