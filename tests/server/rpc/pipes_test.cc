// Named pipes in the place of files: opening one waits for a writer, for ever, so that a caller who
// puts one in the way of the coordinator would stop it for everybody.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/server/server_fixture.h"
#include "tests/testing/within.h"

namespace nsa::server {
namespace {

namespace fs = std::filesystem;

void MakePipe(const fs::path& path) {
  fs::create_directories(path.parent_path());
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0) << path;
}

class PipesTest : public ServerTest {
 protected:
  // More often than there are threads for files.
  static constexpr int kTimes = 6;

  bool Validates(const v1::JobSpec& spec) {
    v1::SubmitJobRequest request;
    *request.mutable_spec() = spec;
    request.set_validate_only(true);
    const auto response = Call<v1::SubmitJobResponse>(&v1::CoordinatorService::Stub::SubmitJob,
                                                      people_.get(), request);
    EXPECT_OK(response);
    return response.ok() && response->report().accepted();
  }

  // Every file that preflight reads of a job, as a pipe.
  std::vector<v1::JobSpec> JobsWithPipes() {
    std::vector<v1::JobSpec> specs;
    MakePipe(folder_ / "out/owned/owner.json");
    specs.push_back(Spec("owned"));
    for (const char* name : {"data.txt", "data.jsonl", "data.parquet", "data.bin", "data.npy"}) {
      MakePipe(folder_ / "data" / name);
      v1::JobSpec& spec = specs.emplace_back(Spec("data"));
      spec.mutable_data()->set_source(std::string(name).ends_with("txt")     ? v1::DATA_SOURCE_TEXT
                                      : std::string(name).ends_with("jsonl") ? v1::DATA_SOURCE_JSONL
                                      : std::string(name).ends_with("parquet")
                                          ? v1::DATA_SOURCE_PARQUET
                                          : v1::DATA_SOURCE_TOKENS);
      spec.mutable_data()->add_path((folder_ / "data" / name).string());
    }
    MakePipe(folder_ / "prepared.tokens/manifest.json");
    v1::JobSpec& prepared = specs.emplace_back(Spec("prepared"));
    prepared.mutable_data()->set_source(v1::DATA_SOURCE_TOKENS);
    prepared.mutable_data()->add_path((folder_ / "prepared.tokens").string());
    MakePipe(folder_ / "tokenizer/tokenizer.json");
    v1::JobSpec& tokenizer = specs.emplace_back(Spec("tokenizer"));
    std::ofstream(folder_ / "text.txt") << std::string(100'000, 'a');
    tokenizer.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
    tokenizer.mutable_data()->add_path((folder_ / "text.txt").string());
    tokenizer.mutable_data()->set_tokenizer(v1::TOKENIZER_BPE);
    tokenizer.mutable_data()->set_tokenizer_path((folder_ / "tokenizer").string());
    MakePipe(folder_ / "out/saved/checkpoints/step-00000005/state.json");
    specs.push_back(Spec("saved"));
    v1::JobSpec& resumed = specs.emplace_back(Spec("resumed"));
    resumed.mutable_restart()->set_resume(
        (folder_ / "out/saved/checkpoints/step-00000005").string());
    return specs;
  }
};

TEST_F(PipesTest, OfAJobsFilesHoldNobodyUp) {
  const std::vector<v1::JobSpec> specs = JobsWithPipes();
  for (int i = 0; i < kTimes; ++i) {
    for (const v1::JobSpec& spec : specs) {
      SCOPED_TRACE(spec.name());
      EXPECT_FALSE(Validates(spec));
    }
  }
  EXPECT_FALSE(Submit(Spec("another")).empty());
  server_.reset();  // ends
}

// Accepted, and only then exchanged for pipes.
TEST_F(PipesTest, OfAcceptedJobsKeepNoOtherFromStartingAndFromBeingDeleted) {
  std::vector<std::string> ids;
  for (int i = 0; i < kTimes; ++i) {
    ids.push_back(Submit(Spec("waits" + std::to_string(i))));
    MakePipe(folder_ / "out" / ("waits" + std::to_string(i)) / "owner.json");
  }
  const std::string good = Submit(Spec("good"));
  FakeAgent agent("a", 8, Wire());
  EXPECT_TRUE(Within(absl::Minutes(1), [&] {
    EXPECT_OK(agent.Beat());
    return Get(good).state() == Job::STATE_RUNNING;
  })) << Get(good).message();
  for (const std::string& id : ids) {
    v1::StopJobRequest stop;
    stop.set_job(id);
    stop.mutable_stop()->set_mode(v1::STOP_MODE_NOW);
    // It may have failed by now.
    Call<v1::StopJobResponse>(&v1::CoordinatorService::Stub::StopJob, people_.get(), stop)
        .status()
        .IgnoreError();
    v1::DeleteJobRequest remove;
    remove.set_job(id);
    EXPECT_TRUE(Within(absl::Minutes(1), [&] {
      EXPECT_OK(agent.Beat());
      return Call<v1::DeleteJobResponse>(&v1::CoordinatorService::Stub::DeleteJob, people_.get(),
                                         remove)
          .ok();
    }));
  }
  EXPECT_OK(Call<v1::ListAuditResponse>(&v1::CoordinatorService::Stub::ListAudit, people_.get(),
                                        v1::ListAuditRequest()));
  server_.reset();  // ends
}

TEST_F(PipesTest, InTheStateFolderAreNamedAtTheStart) {
  for (const char* name : {"access", "cordons.pb", "notices.pb", "audit.log"}) {
    server_.reset();
    const fs::path file = folder_ / "state" / name;
    const fs::path aside = folder_ / "aside";
    const bool had = fs::exists(file);
    if (had) fs::rename(file, aside);
    MakePipe(file);
    EXPECT_THAT(std::string(StartWith(MakeOptions()).status().message()),
                ::testing::HasSubstr(file.string()))
        << name;
    fs::remove(file);
    if (had) fs::rename(aside, file);
    Start();
  }
}

}  // namespace
}  // namespace nsa::server
