// Measures how a job's training data comes through the loader.
//
//   stream_bench JOB.yaml TOKENS [PACE]
//
// Opens the data of JOB.yaml (with absolute paths; the URLs that it names are allowed) as the only
// rank, and reads batches until they have TOKENS tokens. With PACE it takes them as a trainer would
// that makes so many tokens a second, sleeping between batches. Prints one line of JSON:
//
//   open_s            DataLoader::Open()
//   first_batch_s     from the start to the first batch
//   tokens_per_second after the first batch; about PACE with one
//   wait_share        of the time after the first batch, what was spent in Next(): with a PACE how
//                     long a step waits for its data
//   cpu_s             processor time of the whole process
//   peak_mib          most memory of the process (VmHWM)
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "common/estimate/estimate.h"
#include "common/job/load.h"
#include "nlohmann/json.hpp"
#include "worker/train/data/loader.h"

namespace nsa::train {
namespace {

using Clock = std::chrono::steady_clock;

double Since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int64_t PeakMib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6) >> 10;
  }
  return 0;
}

absl::StatusOr<nlohmann::ordered_json> Measure(const std::string& job, int64_t wanted,
                                               double pace) {
  absl::StatusOr<JobFile> file = LoadJobFile(job, "/");
  if (!file.ok()) return file.status();
  ApplyDefaults(&file->spec);
  LoaderOptions options{.spec = file->spec};
  options.vocab = VocabOf(file->spec);
  // Named whole, because a prefix does not allow addresses that are not public.
  options.allowed_urls = {file->spec.data().path().begin(), file->spec.data().path().end()};
  const Clock::time_point began = Clock::now();
  auto loader = DataLoader::Open(options);
  if (!loader.ok()) return loader.status();
  const double opened = Since(began);
  double first = 0, waited = 0, tokens = 0;
  Clock::time_point reading = began;
  while (tokens < static_cast<double>(wanted)) {
    const Clock::time_point asked = Clock::now();
    const absl::StatusOr<Batch> batch = (*loader)->Next();
    if (!batch.ok()) return batch.status();
    if (first == 0) {
      first = Since(began);
      reading = Clock::now();
      continue;
    }
    waited += Since(asked);
    tokens += static_cast<double>(batch->tokens.size());
    if (pace > 0) {
      std::this_thread::sleep_for(
          std::chrono::duration<double>(static_cast<double>(batch->tokens.size()) / pace));
    }
  }
  const double seconds = Since(reading);
  return nlohmann::ordered_json{{"open_s", opened},
                                {"first_batch_s", first},
                                {"tokens_per_second", tokens / seconds},
                                {"wait_share", waited / seconds},
                                {"cpu_s", static_cast<double>(std::clock()) / CLOCKS_PER_SEC},
                                {"peak_mib", PeakMib()}};
}

}  // namespace
}  // namespace nsa::train

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) {
    std::cerr << "stream_bench: " << argc - 1 << " arguments (2 or 3); JOB.yaml TOKENS [PACE]\n";
    return 2;
  }
  const auto measured =
      nsa::train::Measure(argv[1], std::atoll(argv[2]), argc > 3 ? std::atof(argv[3]) : 0);
  if (!measured.ok()) {
    std::cerr << "stream_bench: " << measured.status().message() << "\n";
    return 1;
  }
  std::cout << measured->dump() << "\n";
  return 0;
}
