// What this process has allocated and not freed.
#pragma once

#include <malloc.h>

#include <cstdint>

extern "C" size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace nsa {

// In bytes, of all threads. Under glibc's allocator it includes what threads keep in their caches,
// unless the environment has GLIBC_TUNABLES=glibc.malloc.tcache_count=0.
inline int64_t HeapInUse() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    return static_cast<int64_t>(__sanitizer_get_current_allocated_bytes());
  }
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
}

}  // namespace nsa
