// NCCL, loaded at run time. A machine without it builds everything and trains on one GPU.
//
// This header declares the part of NCCL's binary interface that this program uses. It has been the
// same since 2.17: later versions added functions, and fields at the end of Config, for which the
// library uses defaults when `version` is older.
#pragma once

#include <climits>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/environment.h"

namespace nsa::train::nccl {

// ncclResult_t.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

// ncclDataType_t.
constexpr int kInt8 = 0;
constexpr int kUint8 = 1;
constexpr int kFloat32 = 7;
constexpr int kFloat64 = 8;
constexpr int kBfloat16 = 9;

constexpr int kSum = 0;  // ncclRedOp_t

// ncclUniqueId: made by rank 0, presented by all ranks of one communicator.
struct UniqueId {
  char bytes[128] = {};
};

// ncclConfig_t as of 2.17.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21700;
  int blocking = 0;
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
};

using Communicator = void*;  // ncclComm_t

// The functions that this program uses. Any thread.
struct Library {
  int version = 0;   // 22809 is 2.28.9
  std::string path;  // the file that was loaded

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*init_rank)(Communicator*, int world_size, UniqueId, int rank, Config*) = nullptr;
  Result (*destroy)(Communicator) = nullptr;
  Result (*abort)(Communicator) = nullptr;
  Result (*async_error)(Communicator, Result*) = nullptr;
  Result (*all_reduce)(const void* send, void* receive, size_t count, int type, int op,
                       Communicator, void* stream) = nullptr;
  Result (*reduce)(const void* send, void* receive, size_t count, int type, int op, int root,
                   Communicator, void* stream) = nullptr;
  Result (*broadcast)(const void* send, void* receive, size_t count, int type, int root,
                      Communicator, void* stream) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void* send, size_t count, int type, int peer, Communicator,
                 void* stream) = nullptr;
  Result (*receive)(void* receive, size_t count, int type, int peer, Communicator,
                    void* stream) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  const char* (*last_error)(Communicator) = nullptr;

  // "NCCL 2.28.9 (/usr/local/cuda/lib/libnccl.so.2)", for env.json.
  std::string description() const;
};

// Loads libnccl.so.2, or `file` if it is not empty. NotFound says where it was searched for and
// what to do; FailedPrecondition when the version is not supported (older than 2.17, or 3 and
// later).
absl::StatusOr<Library> Load(const std::string& file);

// Sets the environment variables that NCCL reads. To be called in main() before threads are
// started. The variables turn NVLink multicast off; select one algorithm (ring) and one protocol
// (simple), so that the order of summation depends on sizes and ranks only; turn the registration
// of graph buffers off; restrict NCCL's sockets to the loopback interface unless
// NCCL_SOCKET_IFNAME is set; and let this process read NCCL's log (RedirectLog() in nccl_log.h).
void SetEnvironment();

// Lets NCCL's sockets use exactly this interface, e.g. "eth1", unless NCCL_SOCKET_IFNAME named one
// when the process was started. For ranks on several machines. To be called after SetEnvironment(),
// before NCCL is loaded and before threads are started.
void UseInterface(const std::string& name);

// The variables NCCL_* with which the process was started and which the two functions above have
// replaced or removed, by name. Empty before SetEnvironment(). Any thread.
std::vector<ReplacedVariable> ReplacedEnvironment();

// "NCCL_ALGO=Ring (Tree was set), NCCL_COMM_ID is removed (10.0.0.1:1 was set)". Safe to show.
std::string ReplacedText(const std::vector<ReplacedVariable>& variables);

// Whether SetEnvironment() has been called in this process.
bool EnvironmentIsSet();

}  // namespace nsa::train::nccl
