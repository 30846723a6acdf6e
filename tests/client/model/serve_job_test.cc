// How nsactl serve and export find the model of a job, with a fake coordinator. No worker is beside
// this program, so a model that is found is not served.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/client/nsactl_harness.h"

namespace nsa::client {
namespace {

using ::testing::HasSubstr;

class ServeJobTest : public NsactlTest {
 protected:
  ServeJobTest() {
    v1::Job job;
    job.set_id("jdemo1234567");
    job.set_name("demo");
    job.mutable_spec()->mutable_train()->set_out_dir((dir_ / "out").string());
    state().jobs = {job};
  }
};

TEST_F(ServeJobTest, AsksTheCoordinatorForTheFolderOfAJob) {
  const Ran without = Run({"serve", "demo"});
  EXPECT_EQ(without.code, ExitCode::kNotFound);
  EXPECT_THAT(without.err, HasSubstr("demo: no checkpoint in " + (dir_ / "out").string() +
                                     " on this machine; run nsactl where the job wrote them"));
  const std::filesystem::path checkpoint = dir_.path() / "out/checkpoints/step-00000002";
  std::filesystem::create_directories(checkpoint);
  std::ofstream(checkpoint / "state.json") << "{}";
  const Ran with = Run({"serve", "demo"});
  EXPECT_EQ(with.code, ExitCode::kNotFound);
  EXPECT_THAT(with.err, HasSubstr("nsa-worker")) << "the model was found, the program was not";
}

TEST_F(ServeJobTest, ExportTakesAJobToo) {
  const std::string folder = (dir_ / "exported").string();
  const Ran without = Run({"export", "demo", folder});
  EXPECT_EQ(without.code, ExitCode::kNotFound);
  EXPECT_THAT(without.err, HasSubstr("demo: no checkpoint in " + (dir_ / "out").string()));
  const std::filesystem::path checkpoint = dir_.path() / "out/checkpoints/step-00000002";
  std::filesystem::create_directories(checkpoint);
  std::ofstream(checkpoint / "state.json") << "{}";
  const Ran with = Run({"export", "jdemo1234567", folder});
  EXPECT_NE(with.code, ExitCode::kOk);
  EXPECT_THAT(with.err, HasSubstr("step-00000002")) << "it was found, and is damaged";
  EXPECT_EQ(Run({"export", "other", folder}).code, ExitCode::kNotFound);
  EXPECT_EQ(RunAlone({"--address", "unix:/none", "export", "./demo", folder}).code,
            ExitCode::kNotFound)
      << "nobody is asked about a path";
}

TEST_F(ServeJobTest, AsksNobodyAboutAPath) {
  const Ran path = RunAlone({"--address", "unix:/none", "serve", "./demo"});
  EXPECT_EQ(path.code, ExitCode::kNotFound);
  EXPECT_THAT(path.err, HasSubstr("./demo: no checkpoint"));
  EXPECT_EQ(Run({"serve", "other"}).code, ExitCode::kNotFound);
}

}  // namespace
}  // namespace nsa::client
