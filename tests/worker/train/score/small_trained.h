// A checkpoint of a small model, for tests of scoring and sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/job/load.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/gpu/machine.h"
#include "worker/train/score/trained_model.h"

namespace nsa::train {

inline constexpr int32_t kSeqLen = 32;

// Saves a checkpoint of a small model with its initial weights and a larger head, so that its
// predictions are not uniform. `edit` changes its job. `lie` changes only the job that the
// checkpoint names; `first_weight`, unless it is 0, takes the place of the first weight.
inline void SaveSmallModel(const TempDir& dir, const std::function<void(v1::JobSpec*)>& edit,
                           const std::function<void(v1::JobSpec*)>& lie = {},
                           float first_weight = 0) {
  SetThreads(1, 1);  // a second thread would only slow down so small a model
  v1::JobSpec spec;
  const auto loaded = LoadYamlText(R"(
name: small
model: {dim: 32, n_layers: 2, n_heads: 2, n_kv_groups: 1, d_k: 16, d_v: 16, mlp_ratio: 2}
nsa: {l: 8, d: 4, l_sel: 8, n_sel: 3, w: 8}
data: {source: text, path: none.txt}
train: {seq_len: 32, batch_size: 2, seed: 7}
)",
                                   "small.yaml", &spec);
  EXPECT_OK(loaded);
  ApplyDefaults(&spec);
  edit(&spec);
  const ParameterLayout layout(spec);
  Arena parameters(&layout);
  Initialize(7, &parameters);
  for (float& value : parameters.of(**layout.Find("lm_head.weight"))) value *= 8;
  if (first_weight != 0) parameters.flat()[0] = first_weight;
  CheckpointWriterOptions options;
  options.out_dir = *Folder::Make(dir.path());
  auto writer = CheckpointWriter::Open(options);
  EXPECT_OK(writer);
  v1::CheckpointState state;
  state.set_step(5);
  *state.mutable_spec() = spec;
  if (lie) lie(state.mutable_spec());
  EXPECT_OK(
      (*writer)->Save({&layout, parameters.flat(), parameters.flat(), parameters.flat()}, state));
  EXPECT_OK((*writer)->Drain());
}

inline std::unique_ptr<TrainedModel> SmallModel(const TempDir& dir, bool document_mask = false) {
  SaveSmallModel(
      dir, [&](v1::JobSpec* spec) { spec->mutable_data()->set_document_mask(document_mask); });
  auto trained = TrainedModel::Load(dir.path());
  EXPECT_OK(trained);
  return *std::move(trained);
}

inline std::vector<Token> Bytes(const std::string& text) {
  std::vector<Token> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

}  // namespace nsa::train
