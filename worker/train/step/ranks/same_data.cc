#include "worker/train/step/ranks/same_data.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/job/data/data_files.h"
#include "common/job/data/prepared.h"

namespace nsa::train {
namespace {

constexpr char kSameData[] = "same_data";
constexpr size_t kTextBytes = 1024;  // of what one rank says about its data

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span<T>(&value, 1));
}

// The name counts without its folder: a copy elsewhere is the same data.
uint64_t HashOf(const DataPart& part) {
  const size_t slash = part.name.rfind('/');
  const std::string line = absl::StrCat(
      part.content, "\n", slash == std::string::npos ? part.name : part.name.substr(slash + 1));
  return XXH3_64bits(line.data(), line.size());
}

// The hashes of the parts of rank 0, on every rank.
absl::StatusOr<std::vector<uint64_t>> HashesOfRankZero(std::span<const DataPart> own, Comm* comm) {
  uint64_t count = own.size();
  NSA_RETURN_IF_ERROR(comm->Broadcast(kSameData, 0, BytesOf(count)));
  std::vector<uint64_t> hashes(count);
  if (comm->rank() == 0) std::ranges::transform(own, hashes.begin(), HashOf);
  NSA_RETURN_IF_ERROR(
      comm->Broadcast(kSameData, 0, std::as_writable_bytes(std::span<uint64_t>(hashes))));
  return hashes;
}

uint64_t FirstDifference(std::span<const DataPart> own, std::span<const uint64_t> others) {
  uint64_t i = 0;
  while (i < own.size() && i < others.size() && HashOf(own[i]) == others[i]) ++i;
  return i;
}

// What `rank` has as part `index`, on every rank: "/data/a.txt on rank 1 has 1234 bytes".
absl::StatusOr<std::string> Tell(int rank, std::span<const DataPart> own, uint64_t index,
                                 Comm* comm) {
  std::array<char, kTextBytes> text = {};
  if (comm->rank() == rank) {
    const std::string whole =
        index < own.size()
            ? absl::StrCat(own[index].name, " on rank ", rank, " has ", own[index].content)
            : absl::StrCat("rank ", rank, " has only ", own.size(), " parts of it");
    std::memcpy(text.data(), whole.data(), std::min(whole.size(), text.size() - 1));
  }
  NSA_RETURN_IF_ERROR(
      comm->Broadcast(kSameData, rank, std::as_writable_bytes(std::span<char>(text))));
  text.back() = '\0';
  return std::string(text.data());
}

}  // namespace

absl::Status CheckSameData(const std::string& fingerprint, std::span<const DataPart> parts,
                           Comm* comm) {
  const XXH128_hash_t own = XXH3_128bits(fingerprint.data(), fingerprint.size());
  XXH128_hash_t first = own;
  NSA_RETURN_IF_ERROR(comm->Broadcast(kSameData, 0, BytesOf(first)));
  const bool same = XXH128_isEqual(own, first) != 0;
  double lowest = same ? comm->world_size() : comm->rank();
  NSA_RETURN_IF_ERROR(comm->AllReduce(kSameData, Reduce::kMin, std::span<double>(&lowest, 1)));
  const int other = static_cast<int>(lowest);
  if (other == comm->world_size()) return absl::OkStatus();
  NSA_ASSIGN_OR_RETURN(const std::vector<uint64_t> hashes, HashesOfRankZero(parts, comm));
  uint64_t index = comm->rank() == other ? FirstDifference(parts, hashes) : 0;
  NSA_RETURN_IF_ERROR(comm->Broadcast(kSameData, other, BytesOf(index)));
  NSA_ASSIGN_OR_RETURN(const std::string there, Tell(other, parts, index, comm));
  NSA_ASSIGN_OR_RETURN(const std::string here, Tell(0, parts, index, comm));
  return absl::FailedPreconditionError(absl::StrCat("data differs between machines: ", there, ", ",
                                                    here, "; copy the same files to all machines"));
}

absl::Status CompareData(const v1::WorkerLaunch& launch, const DataLoader& data, Comm* comm) {
  if (launch.rank_address().empty()) return absl::OkStatus();
  double replaced = data.fell_back() ? 1 : 0;
  NSA_RETURN_IF_ERROR(comm->AllReduce(kSameData, Reduce::kMax, std::span<double>(&replaced, 1)));
  if (replaced == 1) return absl::OkStatus();
  const v1::DataSpec& spec = launch.spec().data();
  // The loader has read its files, so they are there.
  const std::string tokenizer = ReadsText(spec) ? TokenizerSha256(spec).value_or("") : "";
  std::vector<DataPart> parts = data.info().parts;
  parts.push_back({absl::StrCat("the tokenizer ", spec.tokenizer_path()),
                   absl::StrCat("the SHA-256 ", tokenizer.substr(0, 16))});
  return CheckSameData(absl::StrCat(data.info().fingerprint, tokenizer), parts, comm);
}

}  // namespace nsa::train
