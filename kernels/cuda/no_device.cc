// Implementation for a build without CUDA, where there is no GPU.
#include "kernels/cuda/blas.h"
#include "kernels/cuda/device.h"

namespace nsa::cuda {
namespace {

absl::Status Missing() {
  return absl::UnimplementedError(
      "CUDA: none (this program was built without it); use nsa-worker-cuda, or device: cpu");
}

}  // namespace

bool BuiltWithCuda() { return false; }
int DeviceCount() { return 0; }
absl::StatusOr<DeviceInfo> ReadDevice() { return Missing(); }
absl::StatusOr<int32_t> KernelArchitecture() { return Missing(); }
Overlap OverlapOf(bool) { return {}; }
absl::StatusOr<int32_t> SharedBytesPerBlock() { return Missing(); }
void ImitateOccupancyOfA100() {}
void ImitateLeastSharedMemory() {}
absl::StatusOr<int32_t> SharedToLaunchWith(const void*, int32_t, int32_t) { return Missing(); }
absl::StatusOr<int64_t> FreeBytes() { return Missing(); }

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(int64_t, const std::string&) {
  return Missing();
}
DeviceMemory::~DeviceMemory() = default;
absl::StatusOr<PinnedMemory> PinnedMemory::Allocate(int64_t, const std::string&) {
  return Missing();
}
PinnedMemory::~PinnedMemory() = default;
absl::StatusOr<Stream> Stream::Create(int32_t) { return Missing(); }
Stream::~Stream() = default;
absl::StatusOr<Event> Event::Create() { return Missing(); }
Event::~Event() = default;
absl::Status Event::Record(void*) { return Missing(); }
absl::Status Event::Wait(void*) const { return Missing(); }
absl::StatusOr<bool> Event::Done() const { return Missing(); }
absl::Status Synchronize(void*) { return Missing(); }
absl::StatusOr<bool> Done(void*) { return Missing(); }
absl::Status CopyBytes(void*, void*, const void*, int64_t) { return Missing(); }
absl::Status ZeroBytes(void*, void*, int64_t) { return Missing(); }
absl::StatusOr<Graph> Graph::Capture(void*, absl::FunctionRef<absl::Status()>) { return Missing(); }
Graph::~Graph() = default;
absl::Status Graph::Launch(void*) const { return Missing(); }
Range::Range(const char*) {}
Range::~Range() = default;

class Blas::Impl {};
absl::StatusOr<std::unique_ptr<Blas>> Blas::Create(void*, int64_t, const std::string&) {
  return Missing();
}
Blas::Blas(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Blas::~Blas() = default;
absl::Status Blas::Plan(void*, std::span<const MatmulArgs>) { return Missing(); }
absl::Status Blas::Matmul(void*, const MatmulArgs&) { return Missing(); }
std::map<std::string, Algorithm> Blas::Algorithms() const { return {}; }
void Blas::Adopt(const std::map<std::string, Algorithm>&) {}
int64_t Blas::untimed_shapes() const { return 0; }
const std::string& Blas::library() const { return description(); }
const std::string& Blas::description() const {
  static const std::string none = "none";
  return none;
}

}  // namespace nsa::cuda
