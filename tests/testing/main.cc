// main() of every gtest program. With `--of FILE` it runs the tests of one source file: a program
// has all unit tests of a room, and ctest runs each file in a process of its own, as if it were a
// program.
#include <cstdio>
#include <string>
#include <string_view>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

// The names of the tests in a file, as a filter; empty if there are none. `file` is a path from the
// top of the tree.
std::string TestsOf(std::string_view file) {
  std::string filter;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!std::string_view(test.file()).ends_with(file)) continue;
      if (!filter.empty()) filter += ':';
      filter += std::string(suite.name()) + "." + test.name();
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (argc == 3 && std::string_view(argv[1]) == "--of") {
    const std::string filter = TestsOf(argv[2]);
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no test is from %s\n", argv[0], argv[2]);
      return 1;
    }
    GTEST_FLAG_SET(filter, filter);
  } else if (argc > 1) {
    std::fprintf(stderr, "usage: %s [--of tests/PATH_test.cc] [--gtest_…]\n", argv[0]);
    return 2;
  }
  return RUN_ALL_TESTS();
}
