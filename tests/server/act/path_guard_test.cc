// Patterns, mixtures and named sets; tests/server/parts_test.cc has the other tests of the guard.
#include "server/act/path_guard.h"

#include <filesystem>
#include <fstream>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/tiny_job.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace nsa::server {
namespace {

using ::testing::HasSubstr;

TEST(PathGuard, APatternMatchesNothingOutsideTheRoots) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root/data");
  std::filesystem::create_directories(folder / "secret");
  std::ofstream(folder / "root/data/a.txt") << "a";
  std::ofstream(folder / "secret/s.txt") << "s";
  const PathGuard guard({folder / "root"});
  v1::JobSpec spec = TinyJob("demo", folder / "root/out");
  const auto check = [&](const std::string& pattern) {
    spec.mutable_data()->clear_path();
    spec.mutable_data()->add_path((folder.path() / pattern).string());
    return guard.CheckSpec(spec);
  };
  EXPECT_OK(check("root/data/*.txt"));
  EXPECT_OK(check("root/data/none-*"));  // preflight says that nothing matches
  for (const char* pattern : {"secret/*.txt", "*/s.txt", "root/../secret/*", "root/data/../*"}) {
    EXPECT_THAT(check(pattern),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.path")))
        << pattern;
  }
  std::filesystem::create_directories(folder / "root/data [v2]");
  EXPECT_OK(check("root/data [v2]/*.txt"));
  std::filesystem::create_symlink(folder / "secret/s.txt", folder / "root/data [v2]/link.txt");
  EXPECT_THAT(check("root/data [v2]/*.txt"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("symbolic link")));
  std::filesystem::create_symlink(folder / "secret/s.txt", folder / "root/data/link.txt");
  EXPECT_THAT(check("root/data/*.txt"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("symbolic link")));
  EXPECT_OK(check("root/data/a*.txt"));
}

TEST(PathGuard, LooksAtTheFilesOfMixturesAndOfNamedSets) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root");
  const PathGuard guard({folder / "root"});
  v1::JobSpec spec = TinyJob("demo", folder / "root/out");
  v1::MixSource* const mix = spec.mutable_data()->add_mix();
  mix->add_path(folder / "root/a.txt");
  EXPECT_OK(guard.CheckSpec(spec));
  mix->add_path("/etc/passwd");
  EXPECT_THAT(guard.CheckSpec(spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.mix[0].path: /etc")));
  spec.mutable_data()->clear_mix();
  (*spec.mutable_data()->mutable_val())["code"] = "/etc/*";
  EXPECT_THAT(guard.CheckSpec(spec),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("data.val.code: /etc")));
}

TEST(PathGuard, AUrlMustBeAllowed) {
  TempDir folder;
  std::filesystem::create_directories(folder / "root");
  v1::JobSpec spec = TinyJob("demo", folder / "root/out");
  spec.mutable_data()->add_path("hf://datasets/a/b/*.parquet");
  const auto check = [&](const std::vector<std::string>& allowed) {
    return PathGuard({folder / "root"}, {}, *UrlPolicy::Make(allowed)).CheckSpec(spec);
  };
  EXPECT_OK(check({"hf://"}));
  EXPECT_OK(check(DefaultAllowedUrls()));
  EXPECT_THAT(check({"https://"}), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("hf://datasets/a/b/*.parquet")));
  EXPECT_FALSE(check({"none"}).ok());
  spec.mutable_train()->set_checkpoint_url("s3://bucket/runs");
  EXPECT_THAT(check({"hf://"}), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("train.checkpoint_url: s3://bucket/runs")));
  EXPECT_OK(check({"hf://", "s3://bucket/"}));
  spec.mutable_train()->clear_checkpoint_url();
  spec.mutable_data()->set_path(0, "file:///etc/passwd");
  EXPECT_OK(check({"hf://"})) << "preflight refuses it";
}

}  // namespace
}  // namespace nsa::server
