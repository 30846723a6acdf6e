// The properties of device memory and streams that kernels and the trainer rely on.
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/cuda/device.h"
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

}  // namespace
}  // namespace nsa::testing
