#include "common/checkpoint/difference.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/checkpoint_dir.h"
#include "common/checkpoint/safetensors_file.h"

namespace nsa {
namespace {

constexpr int64_t kChunk = 1 << 20;  // elements

using Tensor = SafetensorsFile::Tensor;
using Named = std::pair<std::string, Tensor>;

// The hash of the weights in state.json; empty if it cannot be read.
std::string HashOf(const std::filesystem::path& checkpoint) {
  const auto state = ReadCheckpointState(checkpoint);
  if (!state.ok()) return "";
  for (const v1::CheckpointFile& file : state->files()) {
    if (file.name() == kModelFile) return file.xxh3_128();
  }
  return "";
}

std::vector<Named> InOrderOfTheFile(const SafetensorsFile& file) {
  std::vector<Named> tensors(file.tensors().begin(), file.tensors().end());
  std::ranges::sort(tensors, {}, [](const Named& named) { return named.second.offset; });
  return tensors;
}

absl::Status CheckSameShapes(const SafetensorsFile& a, const SafetensorsFile& b) {
  const auto shapes = [](const SafetensorsFile& file) {
    std::map<std::string, std::vector<int64_t>> all;
    for (const auto& [name, tensor] : file.tensors()) all[name] = tensor.shape;
    return all;
  };
  if (shapes(a) == shapes(b)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the checkpoints: of two models (must be one): their tensors have other names or shapes; "
      "compare runs of one model");
}

// The first element that differs, in bits; nothing if none does.
absl::StatusOr<std::optional<WeightDifference>> CompareTensor(const SafetensorsFile& a,
                                                              const SafetensorsFile& b,
                                                              const Named& in_a,
                                                              const Tensor& in_b) {
  std::vector<float> of_a, of_b;
  for (int64_t begin = 0; begin < in_a.second.size; begin += kChunk) {
    const auto count = static_cast<size_t>(std::min(kChunk, in_a.second.size - begin));
    of_a.resize(count);
    of_b.resize(count);
    const int64_t byte = begin * static_cast<int64_t>(sizeof(float));
    NSA_RETURN_IF_ERROR(
        a.ReadBytes(in_a.second, byte, std::as_writable_bytes(std::span<float>(of_a))));
    NSA_RETURN_IF_ERROR(b.ReadBytes(in_b, byte, std::as_writable_bytes(std::span<float>(of_b))));
    if (std::memcmp(of_a.data(), of_b.data(), count * sizeof(float)) == 0) continue;
    size_t i = 0;
    while (std::memcmp(&of_a[i], &of_b[i], sizeof(float)) == 0) ++i;
    return WeightDifference{.first = in_a.first,
                            .element = begin + static_cast<int64_t>(i),
                            .a = of_a[i],
                            .b = of_b[i]};
  }
  return std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<WeightDifference>> CompareWeights(const std::filesystem::path& a,
                                                               const std::filesystem::path& b) {
  if (const std::string hash = HashOf(a); !hash.empty() && hash == HashOf(b)) return std::nullopt;
  NSA_ASSIGN_OR_RETURN(const auto file_a, SafetensorsFile::Open(a / kModelFile));
  NSA_ASSIGN_OR_RETURN(const auto file_b, SafetensorsFile::Open(b / kModelFile));
  NSA_RETURN_IF_ERROR(CheckSameShapes(*file_a, *file_b));
  std::optional<WeightDifference> found;
  int64_t differing = 0;
  for (const Named& named : InOrderOfTheFile(*file_a)) {
    NSA_ASSIGN_OR_RETURN(const std::optional<WeightDifference> one,
                         CompareTensor(*file_a, *file_b, named, file_b->tensors().at(named.first)));
    if (!one.has_value()) continue;
    ++differing;
    if (!found.has_value()) found = one;
  }
  if (!found.has_value()) return std::nullopt;
  found->tensors = static_cast<int64_t>(file_a->tensors().size());
  found->differing = differing;
  return found;
}

absl::StatusOr<CheckpointParting> FindParting(const std::vector<CheckpointEntry>& a,
                                              const std::vector<CheckpointEntry>& b) {
  std::map<int64_t, std::filesystem::path> of_b;
  for (const CheckpointEntry& entry : b) of_b[entry.step] = entry.path;
  std::map<int64_t, std::filesystem::path> of_a;  // oldest first
  for (const CheckpointEntry& entry : a) {
    if (of_b.contains(entry.step)) of_a[entry.step] = entry.path;
  }
  CheckpointParting parting;
  for (const auto& [step, path] : of_a) {
    const auto difference = CompareWeights(path, of_b[step]);
    if (absl::IsFailedPrecondition(difference.status())) return difference.status();
    if (!difference.ok()) {
      parting.unreadable.push_back(
          absl::StrCat(CheckpointName(step), ": ", difference.status().message()));
      continue;
    }
    if (difference->has_value()) {
      parting.step = step;
      parting.difference = *difference;
      break;
    }
    parting.equal.push_back(step);
  }
  return parting;
}

}  // namespace nsa
