#include "server/act/dump_broker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa::server {

void DumpBroker::Request(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
                         absl::Duration patience, Done done) {
  MutexLock lock(&mutex_);
  Add(job, ranks, {.patience = patience, .done = std::move(done)});
}

absl::Status DumpBroker::TryRequest(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
                                    absl::Duration patience, Done done) {
  MutexLock lock(&mutex_);
  if (counted_ >= kMostWaiting) {
    return absl::ResourceExhaustedError(absl::StrCat("stacks: ", counted_,
                                                     " calls already wait for some (at most ",
                                                     kMostWaiting, "); try again later"));
  }
  ++counted_;
  Add(job, ranks, {.patience = patience, .counted = true, .done = std::move(done)});
  return absl::OkStatus();
}

void DumpBroker::Add(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
                     Caller caller) {
  caller.deadline = clock_.Monotonic() + caller.patience;
  // A dump id must not be used again after a restart of the coordinator, because agents remember
  // the ids.
  const int64_t now = absl::ToUnixNanos(clock_.Wall());
  for (const v1::RankPlacement& place : ranks) {
    Caller::Part& part = caller.parts.emplace_back();
    part.key = {job.id(), job.generation(), place.rank()};
    part.dump.set_rank(place.rank());
    part.dump.set_node(place.node());
    Wish& wish = wishes_[part.key];
    if (wish.waiting++ > 0) continue;  // on its way
    wish.node = place.node();
    wish.request.set_dump_id(absl::StrFormat("%x-%d-%d", now, next_id_++, place.rank()));
    wish.request.set_job_id(job.id());
    wish.request.set_generation(job.generation());
    wish.request.set_rank(place.rank());
  }
  callers_.push_back(std::move(caller));
}

std::vector<v1::DumpRequest> DumpBroker::Wanted(const std::string& node) const {
  MutexLock lock(&mutex_);
  std::vector<v1::DumpRequest> wanted;
  for (const auto& [key, wish] : wishes_) {
    if (wish.node == node) wanted.push_back(wish.request);
  }
  return wanted;
}

absl::Status DumpBroker::Report(const v1::ReportDumpRequest& report) {
  Callers answered;
  {
    MutexLock lock(&mutex_);
    const auto wish = std::ranges::find_if(wishes_, [&](const auto& entry) {
      return entry.second.request.dump_id() == report.dump_id() &&
             entry.second.node == report.node();
    });
    if (wish == wishes_.end()) {
      return absl::NotFoundError(
          absl::StrCat("dump_id: ", report.dump_id(), " (nobody waits for it); drop it"));
    }
    const Key key = wish->first;
    wishes_.erase(wish);
    for (auto caller = callers_.begin(); caller != callers_.end();) {
      const auto next = std::next(caller);
      const auto part = std::ranges::find_if(caller->parts, [&](const Caller::Part& candidate) {
        return candidate.key == key && !candidate.answered;
      });
      if (part != caller->parts.end()) {
        part->answered = true;
        part->dump.set_pid(report.pid());
        part->dump.set_status(report.status());
        part->dump.set_stacks(report.stacks());
        part->dump.set_error(report.error());
        part->dump.set_seconds(report.seconds());
        if (std::ranges::all_of(caller->parts, &Caller::Part::answered)) Remove(caller, &answered);
      }
      caller = next;
    }
  }
  Answer(std::move(answered));
  return absl::OkStatus();
}

void DumpBroker::Expire() {
  Callers overdue;
  {
    MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    for (auto caller = callers_.begin(); caller != callers_.end();) {
      const auto next = std::next(caller);
      if (caller->deadline <= now) Remove(caller, &overdue);
      caller = next;
    }
  }
  Answer(std::move(overdue));
}

void DumpBroker::Remove(Callers::iterator caller, Callers* to) {
  if (caller->counted) --counted_;
  for (const Caller::Part& part : caller->parts) {
    const auto wish = wishes_.find(part.key);
    if (!part.answered && wish != wishes_.end() && --wish->second.waiting == 0) wishes_.erase(wish);
  }
  to->splice(to->end(), callers_, caller);
}

void DumpBroker::Answer(Callers callers) {
  for (Caller& caller : callers) {
    std::vector<v1::StackDump> dumps;
    for (Caller::Part& part : caller.parts) {
      v1::StackDump& dump = dumps.emplace_back(std::move(part.dump));
      if (part.answered) continue;
      dump.set_error(
          absl::StrFormat("agent %s did not answer within %.1f s; is it up? see `nsactl nodes`",
                          dump.node(), absl::ToDoubleSeconds(caller.patience)));
    }
    caller.done(std::move(dumps));
  }
}

}  // namespace nsa::server
