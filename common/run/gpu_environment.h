// The environment variables that a worker on GPUs needs on some machines: where its libraries are,
// and how NCCL reaches the other ranks (docs/two_gpus.md). A program that starts a worker, or an
// agent that will, passes them on. What the worker sets itself (worker/train/comm/nccl_library.h)
// is not among them.
#pragma once

#include <iterator>
#include <string>
#include <vector>

namespace nsa {

inline constexpr const char* kGpuEnvironment[] = {
    "NCCL_CROSS_NIC",     "NCCL_DEBUG",        "NCCL_DEBUG_FILE",  "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE",    "NCCL_IB_GID_INDEX", "NCCL_IB_HCA",      "NCCL_IB_SL",
    "NCCL_IB_TC",         "NCCL_IB_TIMEOUT",   "NCCL_NET",         "NCCL_NET_GDR_LEVEL",
    "NCCL_P2P_DISABLE",   "NCCL_P2P_LEVEL",    "NCCL_SHM_DISABLE", "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME", "NSA_CUPTI_LIBRARY", "NSA_NCCL_LIBRARY",
};

// `names` and these.
inline std::vector<std::string> WithGpuEnvironment(std::vector<std::string> names) {
  names.insert(names.end(), std::begin(kGpuEnvironment), std::end(kGpuEnvironment));
  return names;
}

}  // namespace nsa
