#include "kernels/cuda/cublaslt.h"

#include <gtest/gtest.h>

namespace nsa::cuda {
namespace {

// A machine that builds this has the CUDA toolkit and thus the library. Needs no GPU.
TEST(CublasLt, HasEveryFunctionOfTheToolkitsLibrary) {
  const auto library = CublasLt::Load();
  ASSERT_TRUE(library.ok()) << library.status();
  EXPECT_EQ(library->version() / 10000, CUBLAS_VER_MAJOR) << library->path;
}

}  // namespace
}  // namespace nsa::cuda
