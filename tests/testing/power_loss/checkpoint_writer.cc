// `checkpoint_writer OUT_DIR FIRST_STEP [LAST_STEP [RANKS]]` writes a checkpoint in every step, for
// ever or up to LAST_STEP, and prints which are published. All parameters of step s equal s, so
// that a reader can tell complete checkpoints from mixed ones.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/say.h"
#include "tests/testing/small_model.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const int64_t last_step = argc > 3 ? std::atoll(argv[3]) : INT64_MAX;
  const int ranks = argc > 4 ? std::atoi(argv[4]) : 1;
  const nsa::train::ParameterLayout layout(nsa::SmallModel());
  nsa::train::CheckpointWriterOptions options;
  options.world_size = ranks;
  options.on_record = [](const nsa::v1::CheckpointRecord& record) {
    if (record.error().empty()) nsa::Say(absl::StrCat("published ", record.step()));
  };
  // Created first, as the user does who submits the job.
  std::filesystem::create_directories(argv[1]);
  auto out_dir = nsa::train::Folder::Make(argv[1]);
  if (!out_dir.ok()) return 1;
  options.out_dir = *std::move(out_dir);
  std::vector<std::unique_ptr<nsa::train::CheckpointWriter>> writers;
  for (options.rank = 0; options.rank < ranks; ++options.rank) {
    auto writer = nsa::train::CheckpointWriter::Open(options);
    if (!writer.ok()) {
      std::fprintf(stderr, "%s\n", std::string(writer.status().message()).c_str());
      return 1;
    }
    writers.push_back(*std::move(writer));
  }
  std::vector<float> values(static_cast<size_t>(layout.size()));
  nsa::Say("ready");
  for (int64_t step = std::atoll(argv[2]); step <= last_step; ++step) {
    values.assign(values.size(), static_cast<float>(step));
    nsa::v1::CheckpointState state;
    state.set_step(step);
    for (const auto& writer : writers) {
      if (!writer->Save({&layout, values, values, values}, state).ok()) return 1;
    }
  }
  for (const auto& writer : writers) {
    if (!writer->Drain().ok()) return 1;
  }
}
