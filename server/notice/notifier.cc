#include "server/notice/notifier.h"

#include <utility>

#include "common/base/host_name.h"
#include "common/base/log.h"

namespace nsa::server {

// A notice with what delivers it.
struct Notifier::Line {
  Line(const Notice& a_notice, const Parts& parts, NoticeBell& bell)
      : notice(a_notice),
        courier(
            a_notice,
            {.notice = a_notice.name,
             .host = HostName(),
             .page_url = parts.options.page_url.empty() ? parts.page_url : parts.options.page_url},
            parts.options.sendmail, bell.stopped(), parts.clock),
        delivery(a_notice,
                 {.store = parts.store,
                  .progress = parts.progress,
                  .bell = bell,
                  .clock = parts.clock,
                  .send = [this](std::span<const Telling> all) { return courier.Send(all); },
                  .most = courier.most(),
                  .told = [this, &parts](Told told,
                                         int events) { parts.told(notice.name, told, events); },
                  .failed = [this, &parts] { parts.failed(notice.name); },
                  .pauses = parts.pauses}) {}

  const Notice& notice;
  Courier courier;
  Delivery delivery;
  std::thread thread;
};

Notifier::Notifier(Parts parts) : parts_(std::move(parts)) {
  for (const Notice& notice : parts_.options.notices) {
    spdlog::info("notice {}: {}{}", notice.name, notice.place,
                 notice.key.empty() ? "" : ", signed");
    lines_.push_back(std::make_unique<Line>(notice, parts_, bell_));
  }
  for (const auto& line : lines_) {
    line->thread = std::thread([raw = line.get()] { raw->delivery.Run(); });
  }
}

Notifier::~Notifier() { Stop(); }

void Notifier::Stop() {
  bell_.Stop();
  for (const auto& line : lines_) {
    if (line->thread.joinable()) line->thread.join();
  }
}

std::vector<Notifier::Waiting> Notifier::WhatWaits() const {
  std::vector<Waiting> waiting;
  for (const auto& line : lines_) {
    waiting.push_back(
        {.notice = line->notice.name, .since_unix_nanos = line->delivery.waiting_since()});
  }
  return waiting;
}

}  // namespace nsa::server
