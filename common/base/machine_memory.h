// The memory of this machine, or that the control groups of this process allow it.
#pragma once

#include <cstdint>

namespace nsa {

struct MachineMemory {
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // what programs can still get: MemAvailable of proc_meminfo(5)
};

// 0 where the kernel says nothing.
MachineMemory ReadMachineMemory();

}  // namespace nsa
