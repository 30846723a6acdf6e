// The properties of device memory, streams and launches that kernels and the trainer rely on.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/mark.h"
#include "kernels/cuda/side.h"
#include "kernels/nn/activation.h"
#include "kernels/optimizer/step.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/cuda/device.h"

namespace nsa::testing {
namespace {

class DeviceOnGpu : public GpuTest {};

// On a busy GPU, work on the default stream runs late. Here a host function delays that stream.
TEST_F(DeviceOnGpu, MemoryIsZeroedBeforeAnybodyWritesToIt) {
  auto stream = cuda::Stream::Create();
  ASSERT_TRUE(stream.ok()) << stream.status();
  const auto hold_up = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(300)); };
  CheckCuda(cudaLaunchHostFunc(nullptr, hold_up, nullptr), "hold up");
  const std::vector<uint8_t> ones(4096, 1);
  auto memory = cuda::DeviceMemory::Allocate(4096, "a test");
  ASSERT_TRUE(memory.ok()) << memory.status();
  ASSERT_TRUE(cuda::CopyBytes(stream->get(), memory->data(), ones.data(), 4096).ok());
  ASSERT_TRUE(cuda::Synchronize(stream->get()).ok());
  CheckCuda(cudaDeviceSynchronize(), "what was held up");
  std::vector<uint8_t> there(4096);
  CheckCuda(cudaMemcpy(there.data(), memory->data(), 4096, cudaMemcpyDeviceToHost), "download");
  EXPECT_EQ(there, ones);
}

TEST_F(DeviceOnGpu, FreshMemoryIsZero) {
  {
    DeviceTensor poison(1 << 20, DType::kF32);  // the next allocation may get this memory
  }
  auto memory = cuda::DeviceMemory::Allocate(4 << 20, "a test");
  ASSERT_TRUE(memory.ok()) << memory.status();
  std::vector<uint8_t> there(4 << 20, 7);
  CheckCuda(cudaMemcpy(there.data(), memory->data(), there.size(), cudaMemcpyDeviceToHost),
            "download");
  EXPECT_EQ(there, std::vector<uint8_t>(there.size()));
}

// Kernels that depend on each other, on two streams, with a copy and a memset between them: each
// reads what the one in front of it has just written. `after_each` runs between them.
class Chain {
 public:
  explicit Chain(int64_t size)
      : first_(ToDevice(RoundToBf16(Random(size, 1, 4)))),
        x_(size, DType::kBf16),
        y_(size, DType::kBf16),
        z_(size, DType::kBf16) {}

  absl::Status Enqueue(const Exec& exec, absl::FunctionRef<void()> after_each) const {
    const int64_t bytes = x_.bytes();
    NSA_RETURN_IF_ERROR(
        cuda::CopyBytes(exec.stream, x_.tensor().data, first_.tensor().data, bytes));
    for (int i = 0; i < 40; ++i) {
      NSA_RETURN_IF_ERROR(Activate(exec, {x_, y_}));
      after_each();
      NSA_RETURN_IF_ERROR(ActivateBackward(exec, {y_, x_, x_}));
      after_each();
      NSA_RETURN_IF_ERROR(cuda::Fork(exec));
      NSA_RETURN_IF_ERROR(Activate(cuda::OnSide(exec), {y_, z_}));  // beside the next
      NSA_RETURN_IF_ERROR(Activate(exec, {x_, x_}));
      after_each();
      NSA_RETURN_IF_ERROR(cuda::Join(exec));
      NSA_RETURN_IF_ERROR(ActivateBackward(exec, {z_, first_, y_}));
      after_each();
      NSA_RETURN_IF_ERROR(cuda::ZeroBytes(exec.stream, z_.tensor().data, bytes / 2));
      NSA_RETURN_IF_ERROR(ActivateBackward(exec, {first_, z_, z_}));  // half of it of zeros
      after_each();
      NSA_RETURN_IF_ERROR(
          cuda::CopyBytes(exec.stream, x_.tensor().data, z_.tensor().data, bytes / 4));
    }
    return absl::OkStatus();
  }
  std::vector<uint8_t> Results() const {
    std::vector<uint8_t> bytes = x_.Bytes();
    for (const DeviceTensor* tensor : {&y_, &z_}) {
      const std::vector<uint8_t> more = tensor->Bytes();
      bytes.insert(bytes.end(), more.begin(), more.end());
    }
    return bytes;
  }

 private:
  DeviceTensor first_, x_, y_, z_;
};

// Where kernels may begin before the one in front has ended, they still see all of its writes.
TEST_F(DeviceOnGpu, AKernelSeesWhatTheOneInFrontOfItWrote) {
  auto side = cuda::Side::Create();
  auto stream = cuda::Stream::Create(cuda::Side::kMainPriority);
  ASSERT_TRUE(side.ok() && stream.ok());
  Exec exec = Gpu::Get().exec();
  exec.stream = stream->get();
  exec.side = side->get();
  for (const int64_t size : {8, 4000, 300'000, 5'000'000}) {
    SCOPED_TRACE(size);
    const Chain apart(size), together(size), captured(size);
    ASSERT_TRUE(
        apart.Enqueue(exec, [] { CheckCuda(cudaDeviceSynchronize(), "one at a time"); }).ok());
    ASSERT_TRUE(together.Enqueue(exec, [] {}).ok());
    auto graph = cuda::Graph::Capture(exec.stream, [&] { return captured.Enqueue(exec, [] {}); });
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_TRUE(graph->Launch(exec.stream).ok());
    ASSERT_TRUE(graph->Launch(exec.stream).ok());  // and over the graph's own edges
    const std::vector<uint8_t> want = apart.Results();
    EXPECT_EQ(together.Results(), want);
    EXPECT_EQ(captured.Results(), want);
  }
}

// The host must see where a kernel is that does not end.
TEST_F(DeviceOnGpu, AMarkShowsWhileItsKernelRuns) {
  auto host = cuda::PinnedMemory::Allocate(256, "a test");
  ASSERT_TRUE(host.ok()) << host.status();
  auto* const words = static_cast<int32_t*>(host->data());
  std::atomic_ref<int32_t> mark(words[0]), stop(words[16]);
  cuda::PendingMark pending{.word = words, .nanos = nullptr, .value = 7};
  Exec exec = Gpu::Get().exec();
  exec.mark = &pending;
  ASSERT_TRUE(cuda::Spin(exec, words + 16).ok());
  EXPECT_EQ(pending.word, nullptr) << "the kernel takes the mark";
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (mark.load() != 7 && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(mark.load(), 7);
  stop.store(1);
  EXPECT_TRUE(cuda::Synchronize(exec.stream).ok());
}

// A time comes with a mark where one is asked for, and only the next kernel writes it.
TEST_F(DeviceOnGpu, AMarkRecordsWhenItsKernelBegan) {
  auto host = cuda::PinnedMemory::Allocate(256, "a test");
  ASSERT_TRUE(host.ok()) << host.status();
  auto* const word = static_cast<int32_t*>(host->data());
  auto* const nanos = static_cast<int64_t*>(host->data()) + 8;
  const Exec exec = Gpu::Get().exec();
  ASSERT_TRUE(cuda::Mark(exec, {.word = word, .nanos = nanos, .value = 3}).ok());
  ASSERT_TRUE(cuda::Mark(exec, {.word = word, .nanos = nanos + 1, .value = 4}).ok());
  ASSERT_TRUE(cuda::Synchronize(exec.stream).ok());
  EXPECT_EQ(*word, 4);
  EXPECT_GT(nanos[0], 0);
  EXPECT_GE(nanos[1], nanos[0]);
}

}  // namespace
}  // namespace nsa::testing
