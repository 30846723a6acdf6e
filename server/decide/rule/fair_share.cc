#include "server/decide/rule/fair_share.h"

#include <queue>
#include <tuple>
#include <utility>

namespace nsa::server {
namespace {

using Key = std::pair<bool, std::string>;

// The jobs of one priority and value, in the order in which they were queued.
struct Line {
  std::vector<size_t> jobs;  // places in the queue
  size_t next = 0;
};

// Appends the jobs in [first, last), which have one priority, to `sorted`.
void SortEquals(const std::vector<const QueuedJob*>& queue, size_t first, size_t last,
                const std::function<bool(const QueuedJob&)>& fits, Shares* counts,
                std::vector<const QueuedJob*>* sorted) {
  std::map<Key, Line> lines;
  for (size_t i = first; i < last; ++i) {
    lines[{queue[i]->cuda, queue[i]->share}].jobs.push_back(i);
  }
  // The first job of each line: ranks of its value, place in the queue, line. The least is on top.
  using Head = std::tuple<int64_t, size_t, const Key*>;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  const auto push = [&](const Key& key, const Line& line) {
    if (line.next < line.jobs.size()) heads.emplace((*counts)[key], line.jobs[line.next], &key);
  };
  for (const auto& [key, line] : lines) push(key, line);
  while (!heads.empty()) {
    const auto [count, place, key] = heads.top();
    heads.pop();
    const QueuedJob* job = queue[place];
    if (fits(*job)) (*counts)[*key] += job->ranks;
    Line& line = lines.find(*key)->second;
    ++line.next;
    push(*key, line);
    sorted->push_back(job);
  }
}

}  // namespace

void SortByShare(Shares counts, const std::function<bool(const QueuedJob&)>& fits,
                 std::vector<const QueuedJob*>* queue) {
  std::vector<const QueuedJob*> sorted;
  sorted.reserve(queue->size());
  for (size_t first = 0; first < queue->size();) {
    size_t last = first;
    while (last < queue->size() && (*queue)[last]->priority == (*queue)[first]->priority) ++last;
    SortEquals(*queue, first, last, fits, &counts, &sorted);
    first = last;
  }
  *queue = std::move(sorted);
}

}  // namespace nsa::server
