#include "server/watch/veil.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "common/base/status.h"

namespace nsa::server {
namespace {

constexpr size_t kIdBytes = 13;  // NewJobId(): "j" and 12 characters

bool IsIdByte(char c) { return absl::ascii_islower(c) || absl::ascii_isdigit(c); }

// Whether a word has the form of an id and is no job of this owner. Whether there is such a job
// does not count: a caller could ask so for one whose id it writes into its request.
bool MayBeOfAnother(const std::string& word, const JobStore& store, const std::string& owner) {
  const auto base32 = [](char c) { return absl::ascii_islower(c) || (c >= '2' && c <= '7'); };
  if (word.size() != kIdBytes || word[0] != 'j' || !std::ranges::all_of(word, base32)) return false;
  const absl::StatusOr<JobPtr> job = store.Find(word, owner);
  return !job.ok() || (*job)->job().id() != word;
}

}  // namespace

std::string Veiled(std::string_view text, const JobStore& store, const std::string& owner) {
  if (owner.empty()) return std::string(text);
  std::string veiled;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && IsIdByte(text[end])) ++end;
    const std::string word(text.substr(begin, end - begin));
    veiled += MayBeOfAnother(word, store, owner) ? "(another's)" : word;
    if (end < text.size()) veiled += text[end++];
    begin = end;
  }
  return veiled;
}

absl::Status Veiled(const absl::Status& status, const JobStore& store, const std::string& owner) {
  if (status.ok() || owner.empty()) return status;
  const absl::string_view message = status.message();
  return WithMessage(status,
                     Veiled(std::string_view(message.data(), message.size()), store, owner));
}

void Veil(const JobStore& store, const std::string& owner, v1::PreflightReport* report) {
  for (v1::Finding& finding : *report->mutable_findings()) {
    finding.set_problem(Veiled(finding.problem(), store, owner));
    finding.set_fix(Veiled(finding.fix(), store, owner));
  }
}

void KeepOwnJobs(const JobStore& store, const std::string& owner, v1::ListNodesResponse* nodes) {
  if (owner.empty()) return;
  for (v1::Node& node : *nodes->mutable_nodes()) {
    auto& ids = *node.mutable_job_ids();
    ids.erase(std::remove_if(ids.begin(), ids.end(),
                             [&](const std::string& id) { return !store.Find(id, owner).ok(); }),
              ids.end());
  }
}

}  // namespace nsa::server
