#include "common/base/shared_library.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/temp_dir.h"

namespace nsa {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SharedLibrary, FindsWheelsBesideEveryPythonOnPath) {
  const TempDir dir;
  const auto folder = dir / "venv/lib/python3.12/site-packages/nvidia/nccl/lib";
  std::filesystem::create_directories(folder);
  std::filesystem::create_directories(dir / "venv/bin");
  EXPECT_TRUE(PipFolders((dir / "venv/bin").string(), {"nvidia/nccl/lib"}).empty())
      << "no python3 there";
  std::ofstream(dir / "venv/bin/python3") << "#!";
  const std::string path = (dir / "empty").string() + ":" + (dir / "venv/bin").string();
  EXPECT_EQ(PipFolders(path, {"nvidia/nccl/lib"}), std::vector<std::string>{folder.string()});
  EXPECT_TRUE(PipFolders(path, {"nvidia/cublas/lib"}).empty());
  EXPECT_EQ(PipFolders(path, {"nvidia/cublas/lib", "nvidia/nccl/lib"}).size(), 1);
}

TEST(SharedLibrary, NamesWhatItLookedForAndHowToHelp) {
  const auto found = OpenSharedLibrary({.what = "Nonsense",
                                        .names = {"libnonsense.so.7", "libnonsense.so"},
                                        .pip_folders = {"nvidia/nonsense/lib"},
                                        .help = "install libnonsense7"});
  EXPECT_EQ(found.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(found.status().message()),
      AllOf(HasSubstr("Nonsense: not found (libnonsense.so.7"), HasSubstr("install libnonsense7")));
}

TEST(SharedLibrary, NamesTheFileThatLacksAFunction) {
  const auto library = OpenSharedLibrary({.what = "libc", .names = {"libc.so.6"}});
  ASSERT_TRUE(library.ok()) << library.status();
  int (*function)() = nullptr;
  EXPECT_TRUE(library->Resolve("getpid", &function).ok());
  EXPECT_GT(function(), 0);
  const absl::Status absent = library->Resolve("no_such_function", &function);
  EXPECT_EQ(absent.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(absent.message()),
              AllOf(HasSubstr("libc.so.6: no function no_such_function"),
                    HasSubstr("install a newer version")));
}

}  // namespace
}  // namespace nsa
