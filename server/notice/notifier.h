// Notifies people of events of jobs: webhooks and e-mail, as `notices` in coordinator.yaml says.
//
// Each notice gets its events in the order in which they happened, at least once: what was
// delivered is on disk (progress.h) before the next is sent, so kill -9 repeats at most one
// message. Nothing is in memory but the events that are being sent: they are read from the store,
// where they wait. Each notice has a thread of its own, so a slow receiver holds up no other; it
// has at most one request at a time. Deleted jobs send no notices.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "server/notice/courier.h"
#include "server/notice/delivery.h"
#include "server/notice/notice.h"
#include "server/notice/progress.h"
#include "server/store/job_store.h"

namespace nsa::server {

class Notifier {
 public:
  struct Parts {
    const NoticeOptions& options;
    std::string page_url;  // beginning of links, used where options.page_url is empty
    const JobStore& store;
    NoticeProgress& progress;
    const Clock& clock;
    std::function<void(const std::string& notice, Told told, int events)> told;
    std::function<void(const std::string& notice)> failed;  // an attempt
    NoticePauses pauses;
  };

  // Starts a thread for each notice. All that is referred to must outlive the object.
  explicit Notifier(Parts parts);
  ~Notifier();

  // The store has changed. Returns at once.
  void Wake() { bell_.Ring(); }

  // Ends the threads, within about a second; attempts in progress are broken off and made again
  // after the next start. Idempotent.
  void Stop();

  struct Waiting {
    std::string notice;
    int64_t since_unix_nanos = 0;  // of the oldest event that waits for delivery; 0: none
  };
  std::vector<Waiting> WhatWaits() const;

 private:
  struct Line;

  const Parts parts_;
  NoticeBell bell_;
  std::vector<std::unique_ptr<Line>> lines_;
};

}  // namespace nsa::server
