#include "server/act/dump_broker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace nsa::server {

void DumpBroker::Request(const v1::Job& job, const std::vector<v1::RankPlacement>& ranks,
                         absl::Duration patience, Done done) {
  MutexLock lock(&mutex_);
  const int64_t id = next_id_++;
  Group& group = groups_[id];
  group.deadline = clock_.Monotonic() + patience;
  group.patience = patience;
  group.done = std::move(done);
  // A dump id must not be used again after a restart of the coordinator, because agents remember
  // the ids.
  const int64_t now = absl::ToUnixNanos(clock_.Wall());
  for (const v1::RankPlacement& place : ranks) {
    Wish& wish = group.wishes.emplace_back();
    wish.node = place.node();
    wish.request.set_dump_id(absl::StrFormat("%x-%d-%d", now, id, place.rank()));
    wish.request.set_job_id(job.id());
    wish.request.set_generation(job.generation());
    wish.request.set_rank(place.rank());
    wish.dump.set_rank(place.rank());
    wish.dump.set_node(place.node());
  }
}

std::vector<v1::DumpRequest> DumpBroker::Wanted(const std::string& node) const {
  MutexLock lock(&mutex_);
  std::vector<v1::DumpRequest> wanted;
  for (const auto& [id, group] : groups_) {
    for (const Wish& wish : group.wishes) {
      if (!wish.answered && wish.node == node) wanted.push_back(wish.request);
    }
  }
  return wanted;
}

absl::Status DumpBroker::Report(const v1::ReportDumpRequest& report) {
  std::vector<v1::StackDump> dumps;
  Done done;
  {
    MutexLock lock(&mutex_);
    const auto wish_of = [&](Group& group) {
      return std::ranges::find_if(group.wishes, [&](const Wish& wish) {
        return wish.request.dump_id() == report.dump_id() && wish.node == report.node();
      });
    };
    const auto found = std::ranges::find_if(
        groups_, [&](auto& entry) { return wish_of(entry.second) != entry.second.wishes.end(); });
    if (found == groups_.end()) {
      return absl::NotFoundError(
          absl::StrCat("dump_id: ", report.dump_id(), " (nobody waits for it); drop it"));
    }
    Wish& wish = *wish_of(found->second);
    wish.answered = true;
    wish.dump.set_pid(report.pid());
    wish.dump.set_status(report.status());
    wish.dump.set_stacks(report.stacks());
    wish.dump.set_error(report.error());
    wish.dump.set_seconds(report.seconds());
    if (!std::ranges::all_of(found->second.wishes, &Wish::answered)) return absl::OkStatus();
    dumps = Collect(found->second);
    done = std::move(found->second.done);
    groups_.erase(found);
  }
  done(std::move(dumps));
  return absl::OkStatus();
}

void DumpBroker::Expire() {
  std::vector<Group> overdue;
  {
    MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    for (auto entry = groups_.begin(); entry != groups_.end();) {
      if (entry->second.deadline > now) {
        ++entry;
        continue;
      }
      overdue.push_back(std::move(entry->second));
      entry = groups_.erase(entry);
    }
  }
  for (Group& group : overdue) group.done(Collect(group));
}

std::vector<v1::StackDump> DumpBroker::Collect(const Group& group) {
  std::vector<v1::StackDump> dumps;
  for (const Wish& wish : group.wishes) {
    v1::StackDump& dump = dumps.emplace_back(wish.dump);
    if (wish.answered) continue;
    dump.set_error(
        absl::StrFormat("agent %s did not answer within %.1f s; is it up? see `nsactl nodes`",
                        wish.node, absl::ToDoubleSeconds(group.patience)));
  }
  return dumps;
}

}  // namespace nsa::server
