// --device of the commands that use a trained model, and of the worker that they start.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "tests/client/model/trained_model_in_folder.h"

namespace nsa::client {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A folder that has the programs of an installation, so that no GPU is needed.
class InstalledTest : public ProgramsInFolder {
 protected:
  InstalledTest() {
    fs::create_directory(dir_ / "bin");
    fs::copy_file(Program("nsactl"), dir_ / "bin/nsactl");
    AddProgram("nsa-worker");
    fs::create_directories(dir_ / "out/checkpoints/step-00000002");
    std::ofstream(dir_ / "out/checkpoints/step-00000002/state.json") << "{}";
    std::ofstream(dir_ / "text.txt") << "Once upon a time\n";
  }

  // A program that prints its name and its arguments.
  void AddProgram(const std::string& name) {
    const std::string path = dir_ / ("bin/" + name);
    std::ofstream(path) << "#!/bin/sh\nprintf '%s ' " << name << " \"$@\"\n";
    fs::permissions(path, fs::perms::owner_all);
  }

  Ran Nsactl(const std::vector<std::string>& words) {
    std::vector<std::string> all = {"./bin/nsactl"};
    all.insert(all.end(), words.begin(), words.end());
    fs::remove(dir_ / "log");
    const auto started = Spawn({.argv = std::move(all),
                                .environment = FilterEnvironment({"PATH"}),
                                .working_dir = dir_.path(),
                                .output = dir_ / "log"});
    EXPECT_OK(started);
    return started.ok() ? Wait(*started) : Ran{};
  }

  const std::vector<std::vector<std::string>> commands_ = {{"generate", "out"},
                                                           {"eval", "out", "--data", "text.txt"},
                                                           {"needle", "out"},
                                                           {"serve", "out"}};
};

TEST_F(InstalledTest, CudaStartsTheWorkerForGpusWithTheFlag) {
  AddProgram("nsa-worker-cuda");
  for (std::vector<std::string> words : commands_) {
    const Ran on_cpu = Nsactl(words);
    EXPECT_EQ(on_cpu.exit.code, 0) << on_cpu.said;
    EXPECT_THAT(on_cpu.said, StartsWith("nsa-worker ")) << words[0];
    words.insert(words.end(), {"--device", "cpu"});
    EXPECT_EQ(Nsactl(words).said, on_cpu.said);
    words.back() = "cuda";
    const Ran on_gpu = Nsactl(words);
    EXPECT_EQ(on_gpu.exit.code, 0) << on_gpu.said;
    EXPECT_EQ(on_gpu.said, "nsa-worker-cuda" + on_cpu.said.substr(10) + "--device=cuda ");
  }
}

TEST_F(InstalledTest, CudaWithoutTheWorkerForGpusSaysWhatIsMissing) {
  for (std::vector<std::string> words : commands_) {
    words.insert(words.end(), {"--device", "cuda"});
    const Ran ran = Nsactl(words);
    EXPECT_EQ(ran.exit.code, 6) << words[0];
    EXPECT_EQ(ran.said, "nsactl: --device: cuda (" + std::string(dir_ / "bin/nsa-worker-cuda") +
                            " is not there); install nsa-worker-cuda beside nsactl, or use "
                            "--device cpu\n");
  }
}

TEST_F(InstalledTest, OtherDevicesAreWrongUsage) {
  for (std::vector<std::string> words : commands_) {
    words.insert(words.end(), {"--device", "gpu"});
    const Ran ran = Nsactl(words);
    EXPECT_EQ(ran.exit.code, 2) << words[0];
    EXPECT_THAT(ran.said, HasSubstr("nsactl: --device: 'gpu'"));
  }
}

using WorkerDeviceTest = TrainedModelInFolder;

TEST_F(WorkerDeviceTest, TheWorkerComputesOnTheCpuThatItIsTold) {
  const std::vector<std::string> sample = {"nsa-worker", "sample", "artifacts/tiny", "--bytes",
                                           "20"};
  std::vector<std::string> on_cpu = sample;
  on_cpu.insert(on_cpu.end(), {"--device", "cpu"});
  const Ran ran = Run(on_cpu);
  EXPECT_EQ(ran.exit.code, 0) << ran.said;
  EXPECT_EQ(Run(sample).said, ran.said);
}

TEST_F(WorkerDeviceTest, TheWorkerRefusesOtherDevicesAndCommandsWithoutOne) {
  const std::vector<std::string> commands[] = {{"sample", "artifacts/tiny"},
                                               {"score", "artifacts/tiny", "val.txt"},
                                               {"eval", "artifacts/tiny", "val.txt"},
                                               {"needle", "artifacts/tiny"},
                                               {"serve", "artifacts/tiny"}};
  const auto refused = [&](std::vector<std::string> words, const std::string& device) {
    words.insert(words.begin(), "nsa-worker");
    words.insert(words.end(), {"--device", device});
    const Ran ran = Run(words);
    EXPECT_EQ(ran.exit.code, 2) << words[1] << ": " << ran.said;
    return ran.said;
  };
  for (const std::vector<std::string>& command : commands) {
    EXPECT_EQ(refused(command, "cuda"),
              "nsa-worker: --device: cuda (this program was built without CUDA); use "
              "nsa-worker-cuda or --device cpu\n");
    EXPECT_EQ(refused(command, "gpu"),
              "nsa-worker: --device: 'gpu' (must be cpu or cuda); choose one\n");
  }
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"write-needles", "needle.jsonl"}, {"--job", "job.yaml"}}) {
    EXPECT_THAT(refused(command, "cpu"), HasSubstr("--device"));
  }
}

}  // namespace
}  // namespace nsa::client
