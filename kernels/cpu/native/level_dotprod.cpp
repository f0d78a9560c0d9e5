#define PALMETTE_LEVEL dotprod
#define PALMETTE_LEVEL_NAME "dotprod"
#define PALMETTE_TABLE table_dotprod
#include "level.inc"
