#include "common/run/out_of_memory.h"

#include <cstdlib>
#include <new>

#include "gtest/gtest.h"

namespace nsa {
namespace {

TEST(ExitWhenMemoryIsRefused, EndsWithACodeOfItsOwn) {
  const auto refused = [] {
    ExitWhenMemoryIsRefused();
    std::get_new_handler()();  // what operator new calls
  };
  EXPECT_EXIT(refused(), ::testing::ExitedWithCode(kExitOutOfMemory), "memory ran out");
}

}  // namespace
}  // namespace nsa
