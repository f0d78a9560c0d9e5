// What main.cpp alone asks of team.cpp.
#ifndef PALMETTE_TEAM_NEW_H
#define PALMETTE_TEAM_NEW_H

#include "team.h"

namespace pal {
pal_team* new_team(int threads, const pal_level_table* level);
void free_team(pal_team*);
const char* last_message();
}  // namespace pal
#endif
