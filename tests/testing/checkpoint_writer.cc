// Writes checkpoints without end until it is killed: `checkpoint_writer OUT_DIR FIRST_STEP`. The
// parameters of step s are all s, so that a reader can tell whole checkpoints from mixed ones.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "worker/train/checkpoint/checkpoint.h"
#include "worker/train/parameters.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  nsa::v1::JobSpec spec;
  spec.mutable_model()->set_dim(32);
  spec.mutable_model()->set_n_layers(2);
  spec.mutable_model()->set_n_heads(2);
  spec.mutable_model()->set_n_kv_groups(1);
  spec.mutable_model()->set_d_k(16);
  spec.mutable_model()->set_d_v(16);
  spec.mutable_model()->set_mlp_ratio(4);
  spec.mutable_model()->set_vocab(256);
  const nsa::ParameterLayout layout(spec);
  nsa::CheckpointWriterOptions options;
  options.out_dir = argv[1];
  auto writer = nsa::CheckpointWriter::Open(options);
  if (!writer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(writer.status().message()).c_str());
    return 1;
  }
  std::vector<float> values(static_cast<size_t>(layout.size()));
  std::puts("ready");
  std::fflush(stdout);
  for (int64_t step = std::atoll(argv[2]);; ++step) {
    values.assign(values.size(), static_cast<float>(step));
    nsa::v1::CheckpointState state;
    state.set_step(step);
    if (!(*writer)->Save({&layout, values, values, values}, state).ok()) return 1;
  }
}
