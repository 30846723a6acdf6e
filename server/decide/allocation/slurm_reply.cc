#include "server/decide/allocation/slurm_reply.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/clean_text.h"

namespace nsa::server {
namespace {

using End = ClusterJob::End;
using Phase = ClusterJob::Phase;

constexpr size_t kLongestText = 300;
constexpr int64_t kLatestSecond = int64_t{1} << 33;  // nanoseconds of it fit

bool IsNumber(absl::string_view text) {
  return !text.empty() && text.size() <= 18 &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The id of an allocation, as RandomId() makes it.
bool IsAllocationId(absl::string_view text) {
  return text.size() >= 8 && text.size() <= 32 && std::ranges::all_of(text, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
         });
}

// Slurm's texts go into human-readable messages.
std::string Shown(absl::string_view text) {
  return CleanLine(CutText(std::string(text), kLongestText));
}

struct StateRow {
  const char* word;
  Phase phase;
  End end;
};

// A state that is not here is that of a job which may still run.
constexpr StateRow kStates[] = {
    {"PENDING", Phase::kPending, End::kNone},
    {"CONFIGURING", Phase::kPending, End::kNone},
    {"REQUEUED", Phase::kPending, End::kNone},
    {"REQUEUE_HOLD", Phase::kPending, End::kNone},
    {"REQUEUE_FED", Phase::kPending, End::kNone},
    {"SPECIAL_EXIT", Phase::kPending, End::kNone},
    {"RESV_DEL_HOLD", Phase::kPending, End::kNone},
    {"COMPLETING", Phase::kCompleting, End::kNone},
    {"STAGE_OUT", Phase::kCompleting, End::kNone},
    {"COMPLETED", Phase::kEnded, End::kFinished},
    {"FAILED", Phase::kEnded, End::kFinished},
    {"OUT_OF_MEMORY", Phase::kEnded, End::kFinished},
    {"CANCELLED", Phase::kEnded, End::kCancelled},
    {"TIMEOUT", Phase::kEnded, End::kTaken},
    {"PREEMPTED", Phase::kEnded, End::kTaken},
    {"NODE_FAIL", Phase::kEnded, End::kTaken},
    {"BOOT_FAIL", Phase::kEnded, End::kTaken},
    {"DEADLINE", Phase::kEnded, End::kTaken},
    {"REVOKED", Phase::kEnded, End::kTaken},
};

// sacct says "CANCELLED by 1000".
void SetState(absl::string_view state, ClusterJob* job) {
  const absl::string_view word = state.substr(0, state.find(' '));
  job->word = Shown(state);
  job->phase = Phase::kRunning;
  for (const StateRow& row : kStates) {
    if (word != row.word) continue;
    job->phase = row.phase;
    job->end = row.end;
  }
}

std::optional<ClusterJob> ReadLine(absl::string_view line) {
  // The reason comes last, because it may contain anything.
  const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits('|', 4));
  if (fields.size() != 5 || !IsNumber(fields[0]) || fields[1].empty()) return std::nullopt;
  ClusterJob job{.number = fields[0], .name = fields[3], .reason = Shown(fields[4])};
  if (!IsAllocationId(AllocationIdIn(job.name))) return std::nullopt;
  SetState(fields[1], &job);
  int64_t seconds = 0;  // "N/A" without a limit
  if (absl::SimpleAtoi(fields[2], &seconds) && seconds > 0 && seconds < kLatestSecond) {
    job.end_unix_nanos = seconds * 1'000'000'000;
  }
  return job;
}

}  // namespace

std::vector<ClusterJob> ReadSqueue(absl::string_view printed) {
  std::vector<ClusterJob> jobs;
  for (const absl::string_view line : absl::StrSplit(printed, '\n')) {
    if (std::optional<ClusterJob> job = ReadLine(line)) jobs.push_back(*std::move(job));
  }
  return jobs;
}

std::optional<ClusterJob> ReadSacct(absl::string_view printed, const std::string& number) {
  for (const absl::string_view line : absl::StrSplit(printed, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits('|', 2));
    if (fields.size() != 3 || fields[0] != number || fields[1].empty()) continue;
    ClusterJob job{.number = number, .name = fields[2]};
    SetState(fields[1], &job);
    return job;
  }
  return std::nullopt;
}

std::string ReadSbatch(absl::string_view printed) {
  // Plugins of a site may print lines before it.
  for (const absl::string_view line : absl::StrSplit(printed, '\n', absl::SkipWhitespace())) {
    const absl::string_view number = absl::StripAsciiWhitespace(line.substr(0, line.find(';')));
    if (IsNumber(number)) return std::string(number);
  }
  return "";
}

bool SbatchMayPass(absl::string_view sbatch_error) {
  constexpr const char* kPassing[] = {"Unable to contact slurm controller",
                                      "Socket timed out",
                                      "Zero Bytes were transmitted",
                                      "Communication connection failure",
                                      "temporarily unable",
                                      "Transport endpoint is not connected",
                                      "Resource temporarily unavailable",
                                      "Connection refused",
                                      "Connection timed out",
                                      "Unspecified error",
                                      "Message receive failure",
                                      "Munge decode failed",
                                      "authentication credential",
                                      "DNS SRV lookup failed",
                                      "Could not establish a configuration"};
  const std::string error = absl::AsciiStrToLower(sbatch_error);
  return std::ranges::any_of(kPassing, [&](const char* text) {
    return absl::StrContains(error, absl::AsciiStrToLower(text));
  });
}

std::string ShortError(absl::string_view printed) {
  std::vector<std::string> parts;
  for (absl::string_view line : absl::StrSplit(absl::string_view(printed.data(), printed.size()),
                                               '\n', absl::SkipWhitespace())) {
    for (const char* program : {"sbatch: ", "squeue: ", "scancel: ", "sacct: "}) {
      absl::ConsumePrefix(&line, program);
    }
    absl::ConsumePrefix(&line, "error: ");
    parts.emplace_back(absl::StripAsciiWhitespace(line));
  }
  return Shown(absl::StrJoin(parts, "; "));
}

}  // namespace nsa::server
