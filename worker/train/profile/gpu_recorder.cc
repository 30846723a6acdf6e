#include "worker/train/profile/gpu_recorder.h"

#if __has_include(<cupti_activity.h>)
#include <cupti_activity.h>
#include <cupti_result.h>
#include <cupti_version.h>
#define NSA_HAS_CUPTI 1
#else
#define NSA_HAS_CUPTI 0
#endif

#include <cstddef>
#include <cstdlib>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/shared_library.h"
#include "common/base/status.h"

namespace nsa::train {

bool IsCollectiveKernel(std::string_view name) {
  return name.find("ncclDevKernel") != std::string_view::npos ||
         name.find("ncclKernel") != std::string_view::npos;
}

#if NSA_HAS_CUPTI

namespace {

constexpr size_t kBufferBytes = 4 << 20;
constexpr size_t kBufferAlignment = 8;  // ACTIVITY_RECORD_ALIGNMENT

// CUPTI's versions: 19 is that of CUDA 12.0, 130000 that of 13.0.
constexpr uint32_t kOldest = 19;
constexpr uint32_t kNewest = 139999;

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

#if CUPTI_API_VERSION >= 130000
// What a library of CUDA 13 delivers begins like what one of CUDA 12 does.
static_assert(offsetof(CUpti_ActivityKernel9, graphNodeId) ==
              offsetof(CUpti_ActivityKernel10, graphNodeId));
static_assert(offsetof(CUpti_ActivityKernel9, name) == offsetof(CUpti_ActivityKernel10, name));
static_assert(offsetof(CUpti_ActivityMemcpy5, streamId) ==
              offsetof(CUpti_ActivityMemcpy6, streamId));
#endif

struct Functions {
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) register_clock = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_buffers = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) count_dropped = nullptr;
};

class Cupti;
Cupti* g_cupti = nullptr;  // CUPTI's callbacks take no argument for a context

class Cupti final : public GpuRecorder {
 public:
  static absl::StatusOr<std::unique_ptr<Cupti>> Load(const std::string& file);

  absl::Status Start() override;
  absl::Status Stop(int64_t begin, int64_t end, Trace* trace) override;
  void Abandon() override;

  void Take(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid);

 private:
  void Disable();
  absl::Status Check(CUptiResult result, const char* call) const;
  void TakeRecord(const CUpti_Activity* record, Trace* trace) const;
  static void TakeKernel(const CUpti_ActivityKernel9& kernel, Trace* trace);

  Functions call_;
  std::string path_;
  bool registered_ = false;
  Mutex mutex_;
  std::unique_ptr<Trace> delivered_ ABSL_GUARDED_BY(mutex_);  // by CUPTI's threads; null between
};

uint64_t MonotonicNow() {
  return static_cast<uint64_t>(absl::ToInt64Nanoseconds(RealClock().Monotonic()));
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;  // as many as fit
}

void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t /*size*/,
                         size_t valid) {
  g_cupti->Take(context, stream, buffer, valid);
  std::free(buffer);
}

absl::StatusOr<std::unique_ptr<Cupti>> Cupti::Load(const std::string& file) {
  NSA_ASSIGN_OR_RETURN(
      const SharedLibrary shared,
      OpenSharedLibrary({.what = "CUPTI",
                         .names = {"libcupti.so.13", "libcupti.so.12"},
                         .pip_folders = {"nvidia/cu13/lib", "nvidia/cuda_cupti/lib"},
                         .help = "install cuda-cupti of the CUDA toolkit (or pip install "
                                 "nvidia-cuda-cupti), or name the file in NSA_CUPTI_LIBRARY",
                         .file = file}));
  auto cupti = std::make_unique<Cupti>();
  Functions& call = cupti->call_;
  cupti->path_ = shared.path;
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiGetVersion", &call.get_version));
  uint32_t version = 0;
  if (call.get_version(&version) != CUPTI_SUCCESS || version < kOldest || version > kNewest) {
    return absl::FailedPreconditionError(absl::StrCat("CUPTI: version ", version, " of ",
                                                      shared.path, " (from ", kOldest, " to ",
                                                      kNewest, "); install that of CUDA 12 or 13"));
  }
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiGetResultString", &call.result_string));
  NSA_RETURN_IF_ERROR(
      shared.Resolve("cuptiActivityRegisterTimestampCallback", &call.register_clock));
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiActivityRegisterCallbacks", &call.register_buffers));
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiActivityEnable", &call.enable));
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiActivityDisable", &call.disable));
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiActivityFlushAll", &call.flush));
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiActivityGetNextRecord", &call.next_record));
  NSA_RETURN_IF_ERROR(shared.Resolve("cuptiActivityGetNumDroppedRecords", &call.count_dropped));
  return cupti;
}

absl::Status Cupti::Check(CUptiResult result, const char* call) const {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  const char* text = nullptr;
  call_.result_string(result, &text);
  const bool busy = result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ||
                    result == CUPTI_ERROR_NOT_COMPATIBLE;
  return absl::FailedPreconditionError(absl::StrCat(
      "CUPTI: ", call, " of ", path_, ": ", text == nullptr ? "unknown error" : text, " (",
      static_cast<int>(result), "); ",
      busy ? "end the other profiler of this process"
           : "check that it belongs to the driver's CUDA version (nvidia-smi shows it)"));
}

absl::Status Cupti::Start() {
  {
    const MutexLock lock(&mutex_);
    delivered_ = std::make_unique<Trace>();
  }
  if (!registered_) {
    NSA_RETURN_IF_ERROR(
        Check(call_.register_clock(MonotonicNow), "cuptiActivityRegisterTimestampCallback"));
    NSA_RETURN_IF_ERROR(
        Check(call_.register_buffers(GiveBuffer, TakeBuffer), "cuptiActivityRegisterCallbacks"));
    registered_ = true;
  }
  for (const CUpti_ActivityKind kind : kKinds) {
    const absl::Status enabled = Check(call_.enable(kind), "cuptiActivityEnable");
    if (enabled.ok()) continue;
    Abandon();
    return enabled;
  }
  return absl::OkStatus();
}

void Cupti::Abandon() {
  Disable();
  const MutexLock lock(&mutex_);
  delivered_ = nullptr;
}

void Cupti::Disable() {
  for (const CUpti_ActivityKind kind : kKinds) call_.disable(kind);
}

absl::Status Cupti::Stop(int64_t begin, int64_t end, Trace* trace) {
  // First flushed, then disabled: what is complete is delivered either way, and the flush that is
  // forced also takes buffers that are in use.
  const absl::Status flushed =
      Check(call_.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  Disable();
  const MutexLock lock(&mutex_);
  const std::unique_ptr<Trace> delivered = std::move(delivered_);
  const Trace& all = *delivered;
  for (TraceEvent event : all.events()) {
    if (event.begin < begin || event.begin > end) continue;
    event.name = trace->Name(all.name(event.name));
    if (event.launch >= 0) event.launch = trace->Launch(all.launch(event.launch));
    trace->Add(event);
  }
  trace->AddDropped(all.dropped());
  return flushed;
}

void Cupti::Take(CUcontext context, uint32_t stream, uint8_t* buffer, size_t valid) {
  const MutexLock lock(&mutex_);
  if (delivered_ == nullptr) return;  // of a trace that was given up
  CUpti_Activity* record = nullptr;
  while (valid > 0 && call_.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
    TakeRecord(record, delivered_.get());
  }
  size_t dropped = 0;
  if (call_.count_dropped(context, stream, &dropped) == CUPTI_SUCCESS) {
    delivered_->AddDropped(static_cast<int64_t>(dropped));
  }
}

void Cupti::TakeRecord(const CUpti_Activity* record, Trace* trace) const {
  // The time of what has not ended is 0.
  const auto add_bytes = [trace](const auto& done, TraceKind kind, const char* name) {
    if (done.start == 0 || done.end == 0) return;
    trace->Add({.kind = kind,
                .track = kStreamTrack + static_cast<int32_t>(done.streamId),
                .name = trace->Name(name),
                .begin = static_cast<int64_t>(done.start),
                .end = static_cast<int64_t>(done.end),
                .value = static_cast<int64_t>(done.bytes)});
  };
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return TakeKernel(*reinterpret_cast<const CUpti_ActivityKernel9*>(record), trace);
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
      const char* const name = copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to GPU"
                               : copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to host"
                               : copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOD ? "copy on GPU"
                                                                                  : "copy";
      return add_bytes(copy, TraceKind::kCopy, name);
    }
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return add_bytes(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), TraceKind::kSet,
                       "set memory");
    default:
      return;
  }
}

void Cupti::TakeKernel(const CUpti_ActivityKernel9& kernel, Trace* trace) {
  if (kernel.start == 0 || kernel.end == 0) return;
  const char* const name = kernel.name == nullptr ? "unknown kernel" : kernel.name;
  const int32_t launch =
      trace->Launch({.grid = {kernel.gridX, kernel.gridY, kernel.gridZ},
                     .block = {kernel.blockX, kernel.blockY, kernel.blockZ},
                     .registers = kernel.registersPerThread,
                     .shared_bytes = kernel.staticSharedMemory + kernel.dynamicSharedMemory,
                     .graph_node = kernel.graphNodeId});
  trace->Add({.kind = IsCollectiveKernel(name) ? TraceKind::kGpuCollective : TraceKind::kGpuKernel,
              .track = kStreamTrack + static_cast<int32_t>(kernel.streamId),
              .name = trace->Name(name),
              .begin = static_cast<int64_t>(kernel.start),
              .end = static_cast<int64_t>(kernel.end),
              .launch = launch});
}

}  // namespace

absl::StatusOr<GpuRecorder*> OpenGpuRecorder(const std::string& file) {
  if (g_cupti == nullptr) {
    NSA_ASSIGN_OR_RETURN(std::unique_ptr<Cupti> cupti, Cupti::Load(file));
    g_cupti = cupti.release();  // used by CUPTI's threads until the process ends
  }
  return g_cupti;
}

#else

absl::StatusOr<GpuRecorder*> OpenGpuRecorder(const std::string& /*file*/) {
  return absl::FailedPreconditionError(
      "CUPTI: this program was built without its header; build it where the CUDA toolkit has "
      "cupti_activity.h");
}

#endif

}  // namespace nsa::train
