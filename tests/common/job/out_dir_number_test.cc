#include "common/job/out_dir_number.h"

#include <filesystem>
#include <set>

#include "common/job/load.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

v1::JobSpec SpecIn(const std::string& out_dir) {
  v1::JobSpec spec;
  spec.set_name("demo");
  spec.mutable_train()->set_out_dir(out_dir);
  return spec;
}

TEST(OutDirNumber, IsTheFirstThatIsFree) {
  const std::set<std::string> taken = {"/out/demo-1", "/out/demo-2", "/out/demo-4"};
  v1::JobSpec spec = SpecIn("/out/{name}-{n}");
  FillOutDir([&](const std::string& folder) { return taken.contains(folder); }, &spec);
  EXPECT_EQ(spec.train().out_dir(), "/out/demo-3");
}

TEST(OutDirNumber, ANameAloneIsPutIn) {
  v1::JobSpec spec = SpecIn("/out/{name}/x");
  FillOutDir([](const std::string&) { return true; }, &spec);
  EXPECT_EQ(spec.train().out_dir(), "/out/demo/x");
}

TEST(OutDirNumber, OtherFoldersStay) {
  v1::JobSpec spec = SpecIn("/out/{x}");
  FillOutDir([](const std::string&) { return true; }, &spec);
  EXPECT_EQ(spec.train().out_dir(), "/out/{x}");
  EXPECT_FALSE(HasOutDirNumber("/out/{x}"));
}

TEST(OutDirNumber, WhatIsThereIsTaken) {
  TempDir dir;
  std::filesystem::create_directory(dir / "demo-1");
  v1::JobSpec spec = SpecIn((dir / "{name}-{n}").string());
  FillOutDirHere(&spec);
  EXPECT_EQ(spec.train().out_dir(), (dir / "demo-2").string());
}

}  // namespace
}  // namespace nsa
