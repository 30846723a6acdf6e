// What lies outside the allowed roots is neither opened nor revealed.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "tests/server/server_fixture.h"
#include "tests/testing/open_watch.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The answer must not reveal whether the file exists or what it contains.
TEST_F(ServerTest, AFileOutsideAllowedRootsIsRefusedWithoutBeingOpened) {
  allowed_root_ = folder_ / "root";
  std::filesystem::create_directories(allowed_root_);
  Restart();
  const std::filesystem::path outside = folder_ / "outside";
  std::filesystem::create_directories(outside);
  for (const char* name : {"secret.txt", "vocab.json", "merges.txt"}) {
    std::ofstream(outside / name) << "classified";
  }
  OpenWatch watch(outside);
  v1::JobSpec data = TinyJob("demo", allowed_root_ / "out");
  data.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  data.mutable_data()->add_path(outside / "secret.txt");
  v1::JobSpec tokenizer = TinyJob("demo", allowed_root_ / "out");
  tokenizer.mutable_data()->set_tokenizer(v1::TOKENIZER_GPT2);
  tokenizer.mutable_data()->set_tokenizer_path(outside);
  for (const v1::JobSpec& spec : {data, tokenizer}) {
    for (const bool validate_only : {true, false}) {
      v1::SubmitJobRequest request;
      *request.mutable_spec() = spec;
      request.set_validate_only(validate_only);
      const absl::Status status =
          Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(),
                                      request)
              .status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("allowed_roots"), HasSubstr("data."))));
    }
  }
  EXPECT_FALSE(watch.WasOpened());
}

TEST_F(ServerTest, APathThatIsNotAllowedHidesNoOtherMistake) {
  allowed_root_ = folder_ / "root";
  std::filesystem::create_directories(allowed_root_);
  Restart();
  v1::SubmitJobRequest request;
  *request.mutable_spec() = TinyJob("demo", folder_ / "~/out");
  request.mutable_spec()->mutable_model()->set_n_layers(513);
  request.set_validate_only(true);
  const auto response =
      Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(), request);
  ASSERT_OK(response);
  EXPECT_FALSE(response->report().accepted());
  std::set<std::string> rules;
  for (const v1::Finding& finding : response->report().findings()) rules.insert(finding.rule());
  EXPECT_THAT(rules, ::testing::IsSupersetOf({"MODEL_RANGE", "PATH_INVALID"}));
  request.set_validate_only(false);
  const absl::Status status =
      Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob, people_.get(), request)
          .status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 rules refuse")));
}

// While the job runs, its out_dir is replaced by a link to a folder outside. The content of that
// folder is not revealed, and the job is not restarted in it.
TEST_F(ServerTest, AnOutDirExchangedForALinkIsNeitherReadNorStartedIn) {
  allowed_root_ = folder_ / "root";
  std::filesystem::create_directories(allowed_root_);
  Restart();
  const std::filesystem::path out_dir = allowed_root_ / "out";
  FakeAgent agent("a", 1, Wire());
  const std::string id = Submit(TinyJob("demo", out_dir));
  const auto beat_until = [&](Job::State state) {
    return Within(absl::Minutes(1), [&] {
      EXPECT_OK(agent.Beat());
      return Get(id).state() == state;
    });
  };
  ASSERT_TRUE(beat_until(Job::STATE_RUNNING));
  std::filesystem::create_directories(folder_ / "secret/checkpoints/step-00000005");
  std::ofstream(folder_ / "secret/checkpoints/step-00000005/state.json") << "classified";
  v1::ListCheckpointsRequest list;
  list.set_job(id);
  v1::VerifyCheckpointRequest verify;
  verify.set_job(id);
  const auto list_them = [&] {
    return Call<v1::ListCheckpointsResponse>(&v1::CoordinatorService::Stub::ListCheckpoints,
                                             people_.get(), list);
  };
  const auto refused = [&](const std::string& what) {
    const auto verified = Call<v1::VerifyCheckpointResponse>(
        &v1::CoordinatorService::Stub::VerifyCheckpoint, people_.get(), verify);
    for (const absl::Status& status : {list_them().status(), verified.status()}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   AllOf(HasSubstr("train.out_dir"), HasSubstr("symbolic link"))))
          << what;
    }
  };
  std::filesystem::create_directories(out_dir);
  std::filesystem::create_directory_symlink(folder_ / "secret/checkpoints",
                                            out_dir / "checkpoints");
  refused("the folder of checkpoints");
  std::filesystem::remove_all(out_dir);
  std::filesystem::create_directories(out_dir / "checkpoints/step-00000005");
  std::filesystem::create_symlink(folder_ / "secret/checkpoints/step-00000005/state.json",
                                  out_dir / "checkpoints/step-00000005/state.json");
  const auto listed = list_them();
  ASSERT_OK(listed);
  ASSERT_EQ(listed->checkpoints_size(), 1);
  EXPECT_THAT(listed->checkpoints(0).error(), HasSubstr("leads through a symbolic link"));
  std::filesystem::remove_all(out_dir);
  std::filesystem::create_directory_symlink(folder_ / "secret", out_dir);
  refused("out_dir");
  agent.Crash(0, SIGSEGV);
  EXPECT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(id).reason() == "PREFLIGHT_REFUSED";
  })) << Get(id).reason();
  EXPECT_EQ(Get(id).state(), Job::STATE_RESTARTING) << "until the folder is put back";
  EXPECT_THAT(Get(id).message(), HasSubstr("symbolic link"));
  EXPECT_EQ(Get(id).generation(), 1);
}

}  // namespace
}  // namespace nsa::server
