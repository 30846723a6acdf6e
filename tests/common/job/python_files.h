// The 16 job files of the Python system, with the keys and values of each in a layout of our own
// (tests/common/job/python/), and the run that its trainer made of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/testing/paths.h"

namespace nsa {

struct PythonFile {
  std::string name;  // without .yaml
  std::string text;
  int64_t micro_steps = 0;  // train.steps
  int64_t batch = 0;        // sequences that each rank took in a micro-step of a run on text
  int64_t accumulate = 1;
  int64_t seq_len = 0;

  int64_t TokensPerStep(int64_t ranks) const { return batch * accumulate * seq_len * ranks; }
  int64_t Steps() const { return micro_steps / accumulate; }  // a last incomplete step was dropped

  // Writes the file into `folder`, with `more` at its end.
  std::filesystem::path WriteTo(const std::filesystem::path& folder,
                                const std::string& more = "") const {
    const std::filesystem::path path = folder / (name + ".yaml");
    std::ofstream(path) << text << more;
    return path;
  }
};

// Gives each file its text from the source tree.
inline std::vector<PythonFile> WithTexts(std::vector<PythonFile> files) {
  for (PythonFile& file : files) {
    std::ifstream in(SourceDir() + "/tests/common/job/python/" + file.name + ".yaml");
    file.text.assign(std::istreambuf_iterator<char>(in), {});
  }
  return files;
}

// The files that describe a run.
inline std::vector<PythonFile> PythonRuns() {
  return WithTexts({
      {"m7c_125m_1xa100_prod_v1", "", 50000, 2, 2, 2048},
      {"m7c_125m_1xa100_production", "", 50000, 1, 1, 2048},
      {"m7c_125m_2xa100_production", "", 50000, 2, 2, 2048},
      {"m7c_125m_2xa100_production_tuned", "", 50000, 4, 1, 2048},
      {"m7c_125m_24g", "", 200000, 2, 8, 4096},
      {"m7c_125m_40g", "", 200000, 4, 4, 4096},
      {"m7c_125m_80g", "", 200000, 8, 2, 4096},
      {"m7c_125m_2k_test", "", 100, 4, 1, 2048},
      {"m7c_125m_2k_test_cpu", "", 20, 2, 1, 512},
      {"m7c_125m_fast_log", "", 50000, 1, 16, 1024},
      {"m7c_3090_smoke", "", 200, 1, 8, 1024},
      {"m7c_small_smoke", "", 200, 1, 1, 1024},
      {"train_showcase", "", 200, 8, 1, 128},
  });
}

// The files that the Python trainer could not run on their own.
inline std::vector<PythonFile> PythonParts() {
  return WithTexts({{"base", ""}, {"profiles_a100", ""}, {"profiles_sm89", ""}});
}

}  // namespace nsa
