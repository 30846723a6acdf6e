// Runs a fuzz target without libFuzzer: first each kept input, then mutations of them. Mutation i
// is the same in every run, so what died can be run again:
//
//   fuzz/journal_fuzz [--seconds N] [--first I] FILE|FOLDER…
//
// N (default 1) bounds the mutations. When an input kills the target, its bytes are in ./crash-NAME
// and the number of its mutation is printed. An input that takes ten seconds of the
// processor counts as such.
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kLongest = 64 << 10;
constexpr unsigned kPatienceSeconds = 10;

// What runs now, for the handler of its death.
struct {
  const Bytes* input = nullptr;
  long mutation = -1;  // −1: an input as it was kept
  char crash_file[256] = {};
} now;

void KeepInput() {
  if (now.input == nullptr) return;
  const int fd = open(now.crash_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool kept = fd >= 0 && write(fd, now.input->data(), now.input->size()) ==
                                   static_cast<ssize_t>(now.input->size());
  std::fprintf(stderr, "died of mutation %ld (-1: a kept input), %zu bytes, %s %s\n", now.mutation,
               now.input->size(), kept ? "kept as" : "could not be kept as", now.crash_file);
  now.input = nullptr;
}

void OnSignal(int number) {
  if (number == SIGPROF) std::fprintf(stderr, "an input took %u s\n", kPatienceSeconds);
  KeepInput();
  signal(number, SIG_DFL);
  raise(number);
}

// Of the processor's time: on a busy machine the time of the wall says little.
void SetTimer(unsigned seconds) {
  const itimerval timer{.it_interval = {}, .it_value = {.tv_sec = seconds, .tv_usec = 0}};
  setitimer(ITIMER_PROF, &timer, nullptr);
}

void Run(const Bytes& input, long mutation) {
  now.mutation = mutation;
  now.input = &input;
  SetTimer(kPatienceSeconds);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  SetTimer(0);
  now.input = nullptr;
}

// One random change.
void Mutate(const std::vector<Bytes>& kept, std::mt19937_64& random, Bytes* input) {
  const auto below = [&](size_t bound) { return bound == 0 ? 0 : random() % bound; };
  const size_t at = below(input->size() + 1);
  const auto place = input->begin() + static_cast<long>(at);
  const size_t count = std::min(input->size() - at, 1 + below(16));
  const Bytes& other = kept[below(kept.size())];
  const size_t from = below(other.size());
  const size_t taken = std::min(other.size() - from, 1 + below(64));
  // What numbers in a header may be.
  constexpr uint64_t kNumbers[] = {0,
                                   1,
                                   127,
                                   128,
                                   255,
                                   256,
                                   65'535,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   0x7fffffffffffffff,
                                   0x8000000000000000,
                                   ~uint64_t{0}};
  const uint64_t number = kNumbers[below(std::size(kNumbers))] + below(3) - 1;
  uint8_t raw[sizeof number];
  std::memcpy(raw, &number, sizeof number);
  const size_t width = size_t{1} << below(4);
  switch (below(7)) {
    case 0:
      if (at < input->size()) (*input)[at] ^= static_cast<uint8_t>(1 << below(8));
      break;
    case 1:
      if (at < input->size()) (*input)[at] = static_cast<uint8_t>(random());
      break;
    case 2:
      input->erase(place, place + static_cast<long>(count));
      break;
    case 3:
      input->insert(place, count, static_cast<uint8_t>(random()));
      break;
    case 4:
      for (size_t i = 0; i < width && at + i < input->size(); ++i) (*input)[at + i] = raw[i];
      break;
    case 5:
      input->insert(place, other.begin() + static_cast<long>(from),
                    other.begin() + static_cast<long>(from + taken));
      break;
    default:
      input->resize(at);
      input->insert(input->end(), other.begin() + static_cast<long>(from), other.end());
  }
  if (input->size() > kLongest) input->resize(kLongest);
}

void Read(const std::filesystem::path& path, std::vector<Bytes>* kept) {
  std::ifstream file(path, std::ios::binary);
  kept->emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 1;
  long first = 0;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--seconds" && i + 1 < argc) {
      seconds = std::atof(argv[++i]);
    } else if (argument == "--first" && i + 1 < argc) {
      first = std::atol(argv[++i]);
    } else if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::directory_iterator(argument)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    } else {
      files.emplace_back(argument);
    }
  }
  std::ranges::sort(files);  // so that mutation i is the same everywhere
  std::vector<Bytes> kept;
  for (const auto& file : files) Read(file, &kept);
  if (kept.empty()) {
    std::fprintf(stderr, "%s: no input; name the files of tests/fuzz/corpus\n", argv[0]);
    return 2;
  }
  std::snprintf(now.crash_file, sizeof now.crash_file, "crash-%s",
                std::filesystem::path(argv[0]).filename().c_str());
  for (const int number : {SIGABRT, SIGPROF, SIGSEGV}) signal(number, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(KeepInput);

  for (const Bytes& input : kept) Run(input, -1);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  long mutation = first;
  for (; std::chrono::steady_clock::now() < end; ++mutation) {
    std::mt19937_64 random(static_cast<uint64_t>(mutation));
    Bytes input = kept[random() % kept.size()];
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) Mutate(kept, random, &input);
    Run(input, mutation);
  }
  std::printf("%zu kept inputs, %ld mutations\n", kept.size(), mutation - first);
  return 0;
}
