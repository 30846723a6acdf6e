// Cores, memory and GPUs of this machine.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "nsa/v1/fleet.pb.h"
#include "worker/agent/nvml.h"
#include "worker/agent/options.h"
#include "worker/agent/program_hash.h"

namespace nsa::agent {

// GPUs are listed through NVML, which is loaded at run time: a machine without it has no GPUs. GPUs
// that $CUDA_VISIBLE_DEVICES leaves out (a batch system's allocation) do not count. A separate
// thread hashes the programs of the workers, asks the driver, because the call may hang when a GPU
// is broken, and tries the CUDA worker. With a driver, gpus_age_seconds is -1 until it has
// answered.
//
// Thread-safe.
class Inventory {
 public:
  explicit Inventory(const AgentOptions& options);
  ~Inventory();

  // Free host memory is measured now. Free GPU memory is as old as gpus_age_seconds says: about a
  // second while the driver answers.
  v1::NodeInfo Read() const;

 private:
  void Watch(const AgentOptions& options);  // the thread
  void HashPrograms();
  void ReadLink(const std::string& rank_address);
  std::unique_ptr<Nvml> Begin(const AgentOptions& options);

  mutable Mutex mutex_;
  CondVar wake_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration measured_
      ABSL_GUARDED_BY(mutex_);  // monotonic time of the request that node_ answers
  v1::NodeInfo node_ ABSL_GUARDED_BY(mutex_);
  ProgramHash worker_;  // of the thread, like the next one
  ProgramHash cuda_worker_;
  std::thread thread_;
};

// The version in what nsa-worker-cuda --check-nccl prints: "2.28.9" of "NCCL 2.28.9 (/usr/lib/…)".
// Empty if there is none.
std::string NcclVersion(absl::string_view said);

// The GPUs that $CUDA_VISIBLE_DEVICES selects, read as CUDA reads it: positions or UUIDs (or their
// beginnings), up to the first entry that names no GPU. `gpus` are all GPUs of the machine in
// NVML's order.
std::vector<v1::GpuInfo> VisibleGpus(const std::vector<v1::GpuInfo>& gpus, const char* visible);

}  // namespace nsa::agent
