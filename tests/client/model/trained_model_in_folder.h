// A fixture: a folder with a trained model in artifacts/tiny, where our programs run.
#pragma once

#include <fstream>

#include "tests/client/model/programs_in_folder.h"

namespace nsa::client {

class TrainedModelInFolder : public ProgramsInFolder {
 protected:
  void SetUp() override {
    std::ofstream(dir_ / "text.txt") << "To be, or not to be, that is the question:\n"
                                        "Whether 'tis nobler in the mind to suffer\n";
    std::ofstream(dir_ / "val.txt") << "The slings and arrows of outrageous fortune\n";
    std::ofstream(dir_ / "job.yaml")
        << "name: tiny\n"
           "model: {dim: 32, n_layers: 2, n_heads: 4, n_kv_groups: 2, d_k: 16, d_v: 16}\n"
           "nsa: {l: 8, d: 4, l_sel: 8, n_sel: 4, w: 16}\n"
           "data: {source: text, path: text.txt, val_path: val.txt, tokenizer: byte}\n"
           "train: {steps: 2, seq_len: 32, batch_size: 2, save_every: 2}\n";
    const Ran train = Run({"nsa-worker", "--job", "job.yaml"});
    ASSERT_EQ(train.exit.code, 0) << train.said;
  }
};

}  // namespace nsa::client
