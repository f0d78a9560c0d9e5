// An array that is kept from step to step and only ever grows. Not for level files.
#ifndef PALMETTE_GROW_H
#define PALMETTE_GROW_H

#include <stddef.h>
#include <stdint.h>

#include "team.h"

namespace pal {

template <class T>
struct Grow {
  T* data = nullptr;
  int64_t capacity = 0;

  Grow() = default;
  Grow(const Grow&) = delete;
  Grow& operator=(const Grow&) = delete;
  ~Grow() { release(data); }

  // Room for n elements; what was there is gone where it did not suffice. False when memory is out.
  bool room(int64_t n) {
    if (n <= capacity) return true;
    release(data);
    int64_t wanted = n + n / 4;
    data = (T*)allocate((size_t)wanted * sizeof(T));
    capacity = data ? wanted : 0;
    return data != nullptr;
  }
  T& operator[](int64_t i) { return data[i]; }
};

}  // namespace pal
#endif
