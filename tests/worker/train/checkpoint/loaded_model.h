// The model of a checkpoint, in memory.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "tests/testing/status_matchers.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

struct LoadedModel {
  v1::JobSpec spec;  // as the checkpoint has it
  std::unique_ptr<ParameterLayout> layout;
  Arena parameters;

  std::vector<float> Values(const std::string& name) const {
    const auto tensor = layout->Find(name);
    EXPECT_OK(tensor);
    const auto values = parameters.of(**tensor);
    return {values.begin(), values.end()};
  }
};

inline absl::StatusOr<LoadedModel> LoadModel(const std::filesystem::path& checkpoint) {
  NSA_ASSIGN_OR_RETURN(const v1::CheckpointState state, ReadCheckpointState(checkpoint));
  LoadedModel model{state.spec(), std::make_unique<ParameterLayout>(state.spec()), {}};
  model.parameters = Arena(model.layout.get());
  Arena moments(model.layout.get());
  NSA_RETURN_IF_ERROR(LoadCheckpoint(checkpoint, "",
                                     {.layout = model.layout.get(),
                                      .parameters = model.parameters.flat(),
                                      .first_moment = moments.flat(),
                                      .second_moment = moments.flat()})
                          .status());
  return model;
}

}  // namespace nsa::train
