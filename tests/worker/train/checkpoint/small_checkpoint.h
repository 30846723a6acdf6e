// A small training state to save, and the records and events of a checkpoint writer.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "tests/testing/small_model.h"
#include "tests/testing/temp_dir.h"
#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/model/parameters.h"

namespace nsa::train {

// The layout of the state; outlives every writer.
inline const ParameterLayout& SmallLayout() {
  static const ParameterLayout layout(SmallModel());
  return layout;
}

// Parameters and moments whose elements all differ, also from those of another `salt`. The gaps
// between tensors are 0.
struct Training {
  explicit Training(float salt = 0) : parameters(SmallLayout().size()), m(parameters), v(m) {
    for (const ParameterInfo& tensor : SmallLayout().tensors()) {
      for (int64_t i = tensor.offset; i < tensor.offset + tensor.size; ++i) {
        parameters[i] = salt + static_cast<float>(i);
        m[i] = -salt - static_cast<float>(i) * 0.5f;
        v[i] = salt + static_cast<float>(i) * 0.25f;
      }
    }
  }
  TrainingState state() const { return {&SmallLayout(), parameters, m, v}; }
  RestoreTarget target() { return {&SmallLayout(), parameters, m, v}; }
  std::vector<float> parameters, m, v;
};

// Records and events of the writer's thread.
struct Said {
  Mutex mutex;
  std::vector<v1::CheckpointRecord> records ABSL_GUARDED_BY(mutex);
  std::vector<std::string> events ABSL_GUARDED_BY(mutex);
};

inline CheckpointWriterOptions Options(const TempDir& dir, Said* said = nullptr) {
  CheckpointWriterOptions options;
  options.out_dir = *Folder::Make(dir.path());
  options.generation = 3;
  if (said == nullptr) return options;
  options.on_record = [said](const v1::CheckpointRecord& record) {
    const MutexLock lock(&said->mutex);
    said->records.push_back(record);
  };
  options.on_event = [said](const v1::WorkerEvent& event) {
    const MutexLock lock(&said->mutex);
    said->events.push_back(event.reason() + " " + event.text());
  };
  return options;
}

inline v1::CheckpointState State(int64_t step, double val_loss = 0) {
  v1::CheckpointState state;
  state.set_step(step);
  state.set_total_tokens(step * 1000);
  state.set_job_hash("abc");
  state.mutable_data()->set_epoch(2);
  state.mutable_data()->set_sequence(77);
  state.set_val_loss(val_loss);
  state.mutable_spec()->mutable_train()->set_eval_every(1);
  return state;
}

inline std::vector<std::string> Names(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace nsa::train
