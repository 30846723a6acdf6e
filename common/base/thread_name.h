// Names of threads, for `top -H`, stack dumps and profiles.
#pragma once

#include <pthread.h>

namespace nsa {

// Names the calling thread; threads that it starts inherit the name. At most 15 bytes; a longer
// name is ignored.
inline void NameThread(const char* name) { pthread_setname_np(pthread_self(), name); }

}  // namespace nsa
