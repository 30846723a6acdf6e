#include "worker/train/needle/task.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "worker/train/data/random.h"

namespace nsa::train {
namespace {

constexpr uint32_t kLeastKey = 10'000, kMostKey = 99'999;
constexpr size_t kKeys = 4, kValues = 3, kVariables = 3;
constexpr uint32_t kMostTimes = 9;
// Of one length, so that all documents of a task are equally long.
constexpr std::array kNames = {"amber", "birch", "cedar", "coral", "hazel", "ivory",
                               "lemon", "maple", "olive", "pearl", "sable", "umber"};

struct Sentence {
  double place = 0;  // in the filler, 0 to 1
  std::string text;
};

struct Hidden {
  std::vector<Sentence> sentences;
  std::string question, answer;
};

std::vector<uint32_t> Distinct(size_t count, uint32_t least, uint32_t most, KeyedRandom* random) {
  std::vector<uint32_t> numbers;
  while (numbers.size() < count) {
    const uint32_t number = least + random->Below(most - least + 1);
    if (std::ranges::count(numbers, number) == 0) numbers.push_back(number);
  }
  return numbers;
}

std::vector<uint32_t> DrawKeys(size_t count, KeyedRandom* random) {
  return Distinct(count, kLeastKey, kMostKey, random);
}

std::vector<const char*> DrawNames(size_t count, KeyedRandom* random) {
  std::vector<const char*> names;
  for (const uint32_t i : Distinct(count, 0, kNames.size() - 1, random)) names.push_back(kNames[i]);
  return names;
}

// The place that divides the filler from `begin` to its end at `part`, 0 to 1.
double Behind(double begin, double part) { return begin + (1 - begin) * part; }

double Part(size_t i, size_t count) { return static_cast<double>(i) / static_cast<double>(count); }

Hidden HideKey(double depth, KeyedRandom* random) {
  const uint32_t key = DrawKeys(1, random)[0];
  return {.sentences = {{depth,
                         absl::StrFormat("\nThe pass key is %d. Remember it. %d is the pass key.\n",
                                         key, key)}},
          .question = "\nWhat is the pass key? The pass key is",
          .answer = absl::StrCat(" ", key)};
}

Hidden HideKeys(double depth, KeyedRandom* random) {
  const std::vector<uint32_t> keys = DrawKeys(kKeys, random);
  const std::vector<const char*> names = DrawNames(kKeys, random);
  Hidden hidden{.question = absl::StrFormat("\nWhat is the pass key of %s? The pass key of %s is",
                                            names[0], names[0]),
                .answer = absl::StrCat(" ", keys[0])};
  for (size_t i = 0; i < kKeys; ++i) {
    hidden.sentences.push_back(
        {i == 0 ? depth : random->Uniform(),
         absl::StrFormat("\nThe pass key of %s is %d. Remember it.\n", names[i], keys[i])});
  }
  return hidden;
}

Hidden HideValues(double depth, KeyedRandom* random) {
  const std::vector<uint32_t> keys = DrawKeys(kValues, random);
  const char* const name = DrawNames(1, random)[0];
  Hidden hidden{.question = absl::StrFormat(
                    "\nWhat are the pass keys of %s? The pass keys of %s are", name, name),
                .answer = absl::StrCat(" ", absl::StrJoin(keys, ", "))};
  for (size_t i = 0; i < kValues; ++i) {
    hidden.sentences.push_back(
        {Behind(depth, Part(i, kValues)),
         absl::StrFormat("\nOne pass key of %s is %d. Remember it.\n", name, keys[i])});
  }
  return hidden;
}

Hidden HideTrace(double depth, KeyedRandom* random) {
  const std::vector<uint32_t> values = DrawKeys(2, random);
  const std::vector<const char*> names = DrawNames(2 * kVariables, random);
  const char* const asked = names[kVariables - 1];
  Hidden hidden{.question = absl::StrFormat("\nWhat is the value of VAR %s? The value of VAR %s is",
                                            asked, asked),
                .answer = absl::StrCat(" ", values[0])};
  const double begins[] = {depth, random->Uniform()};
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t chain = i / kVariables, link = i % kVariables;
    hidden.sentences.push_back(
        {Behind(begins[chain], Part(link, kVariables)),
         link == 0 ? absl::StrFormat("\nVAR %s = %d.\n", names[i], values[chain])
                   : absl::StrFormat("\nVAR %s = VAR %s.\n", names[i], names[i - 1])});
  }
  return hidden;
}

Hidden HideWord(double depth, KeyedRandom* random) {
  const char* const word = DrawNames(1, random)[0];
  const uint32_t times = 1 + random->Below(kMostTimes);
  Hidden hidden{.question = absl::StrFormat(
                    "\nHow often is it said that the word is %s? The number is", word),
                .answer = absl::StrCat(" ", times)};
  for (uint32_t i = 0; i < times; ++i) {
    hidden.sentences.push_back({Behind(depth, i == 0 ? 0 : random->Uniform()),
                                absl::StrFormat("\nThe word is %s.\n", word)});
  }
  return hidden;
}

struct Row {
  const char* name;
  size_t least_bytes;
  Hidden (*hide)(double depth, KeyedRandom* random);
};

// In the order of NeedleTask. With bytes as tokens, 255 of them and the separator are a context of
// 256, the shortest of MeasureNeedles() by default; the longest fixed text, of kKeys, has 246.
constexpr Row kRows[] = {{"key", 128, HideKey},
                         {"keys", 255, HideKeys},
                         {"values", 255, HideValues},
                         {"trace", 255, HideTrace},
                         {"count", 255, HideWord}};

const Row& RowOf(NeedleTask task) { return kRows[static_cast<size_t>(task)]; }

// Exactly `bytes` bytes: words, and dots where no further word fits.
std::string Padded(const Filler& filler, size_t bytes, size_t* next) {
  std::string text = filler.Words(bytes, next);
  text.append(bytes - text.size(), '.');
  return text;
}

}  // namespace

absl::StatusOr<NeedleTask> NeedleTaskNamed(std::string_view name) {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (name == kRows[i].name) return static_cast<NeedleTask>(i);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--task: '", std::string(name), "' (must be key, keys, values, trace or count); choose one"));
}

const char* NameOf(NeedleTask task) { return RowOf(task).name; }

size_t LeastBytes(NeedleTask task) { return RowOf(task).least_bytes; }

TaskDocument MakeTaskDocument(NeedleTask task, const Filler& filler, size_t bytes, double depth,
                              uint64_t seed) {
  KeyedRandom random(seed ^ static_cast<uint64_t>(task));  // a stream for each task
  const Row& row = RowOf(task);
  Hidden hidden = row.hide(depth, &random);
  std::ranges::stable_sort(hidden.sentences, {}, &Sentence::place);
  size_t filled = std::max(bytes, row.least_bytes) - hidden.question.size() - hidden.answer.size();
  for (const Sentence& sentence : hidden.sentences) filled -= sentence.text.size();
  TaskDocument document{.answer = std::move(hidden.answer)};
  size_t next = random.Below(static_cast<uint32_t>(filler.size())), done = 0;
  for (const Sentence& sentence : hidden.sentences) {
    const auto place =
        static_cast<size_t>(std::lround(sentence.place * static_cast<double>(filled)));
    absl::StrAppend(&document.prompt, Padded(filler, place - done, &next), sentence.text);
    done = place;
  }
  absl::StrAppend(&document.prompt, Padded(filler, filled - done, &next), hidden.question);
  return document;
}

}  // namespace nsa::train
