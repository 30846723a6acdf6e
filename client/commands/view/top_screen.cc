#include "client/commands/view/top_screen.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/show/human.h"
#include "client/show/job_text.h"
#include "client/show/watch_view.h"

namespace nsa::client {
namespace {

// The time of day in the first line, and how long a job has been waiting, move without news.
constexpr absl::Duration kDrawAgain = absl::Seconds(2);
// A coordinator that says nothing for so long is as good as gone, also while a call waits for it.
constexpr absl::Duration kSilence = absl::Seconds(6);
constexpr std::ptrdiff_t kPage = 10;
constexpr char kShowCursor[] = "\x1B[?25h";
constexpr char kHideCursor[] = "\x1B[?25l";

}  // namespace

TopScreen::TopScreen(Session* session, Client* client, const v1::ListJobsRequest& wanted,
                     TopState first)
    : session_(*session),
      block_(&session->out()),
      keyboard_(Keyboard::Open(&session->interrupt())),
      feed_(session, client, wanted, std::move(first), [this] {
        if (keyboard_ != nullptr) keyboard_->Wake();
      }) {}

TopScreen::~TopScreen() { session_.interrupt().Raise(); }

absl::StatusOr<ExitCode> TopScreen::Run() {
  // Ctrl-C ends the loop between two waits too, so that the terminal is given back.
  const Interrupt::Scope scope(&session_.interrupt(), [] {});
  while (!session_.interrupt().raised()) {
    const std::shared_ptr<const Picture> picture = feed_.picture();
    if (!picture->status.ok()) return picture->status;
    if (keyboard_ != nullptr) Select(*picture, 0);
    Draw(*picture);
    if (keyboard_ == nullptr) {
      session_.interrupt().SleepFor(kDrawAgain);
      continue;
    }
    const KeyPress press = keyboard_->Read(kDrawAgain);
    if (press.key == Key::kClosed) return ExitCode::kInterrupted;
    if (press.key == Key::kSuspend) {
      Suspend();
    } else if (press.key != Key::kNone) {
      seen_ = picture->news;
      Press(press, *picture);
    }
    if (quits_) return ExitCode::kOk;
  }
  return ExitCode::kInterrupted;
}

std::vector<std::string> TopScreen::OpenLines(const OpenJob& open, bool connected) const {
  const ViewOptions options = {.columns = session_.console().columns() - 1,
                               .unicode = session_.console().unicode,
                               .colours = session_.colours()};
  const absl::Time now = session_.now();
  const absl::Duration silence = connected ? absl::ZeroDuration() : now - open.received;
  std::vector<std::string> lines = LiveView(
      open.job, {.now = now, .received = open.received, .connected = connected, .silence = silence},
      options);
  const int left = TerminalRows() - static_cast<int>(lines.size()) - 4;
  const std::vector<std::string> charts = ChartLines(open.curves, open.problem,
                                                     {.columns = options.columns,
                                                      .rows = left,
                                                      .unicode = options.unicode,
                                                      .colours = options.colours});
  if (!charts.empty()) lines.emplace_back();
  lines.insert(lines.end(), charts.begin(), charts.end());
  lines.emplace_back();
  lines.push_back(Shorten(choice_.last_line, options.columns, options.unicode));
  return lines;
}

void TopScreen::Draw(const Picture& picture) {
  if (keyboard_ != nullptr) choice_.last_line = LastLine();
  const bool news = !picture.news.empty() && picture.news != seen_ && !typing_;
  if (news && !asked_.has_value()) choice_.last_line = picture.news;
  TopState state = picture.state;
  if (session_.clock().Monotonic() - picture.read > kSilence) state.connected = false;
  if (!open_.empty() && picture.open.has_value() && picture.open->job.id() == open_) {
    block_.Draw("", OpenLines(*picture.open, state.connected));
    return;
  }
  block_.Draw("", TopView(state, choice_, session_.now(),
                          {.columns = session_.console().columns() - 1,
                           .rows = TerminalRows(),
                           .unicode = session_.console().unicode,
                           .colours = session_.colours()}));
}

std::string TopScreen::LastLine() const {
  if (typing_) return absl::StrCat("filter: ", choice_.filter, "_   Enter, Esc: all jobs");
  if (asked_.has_value()) {
    return absl::StrCat("Stop ", asked_->name(), " after this step, with a checkpoint? y: stop it");
  }
  if (!open_.empty()) return "Esc back   x stop   q quit";
  // A narrow terminal has no room for the last ones.
  return JoinFitting({"Enter open",
                      absl::StrCat("s order: ", kTopOrders.at(choice_.order),
                                   choice_.reversed ? ", reversed" : ""),
                      absl::StrCat("/ filter", choice_.filter.empty() ? "" : ": ", choice_.filter),
                      "x stop", "q quit", "r reverse"},
                     "  ", session_.console().columns() - 1, session_.console().unicode);
}

void TopScreen::Select(const Picture& picture, std::ptrdiff_t by) {
  const auto jobs = JobsShown(picture.state, choice_, session_.now());
  const auto found = std::ranges::find(jobs, choice_.selected, &v1::Job::id);
  const auto last = std::ssize(jobs) - 1;
  const auto at = found == jobs.end() ? 0 : (found - jobs.begin()) + by;
  choice_.selected = jobs.empty() ? "" : jobs[std::clamp<std::ptrdiff_t>(at, 0, last)]->id();
}

void TopScreen::Press(const KeyPress& press, const Picture& picture) {
  if (typing_) return Type(press);
  if (asked_.has_value()) return Answer(press.text);
  if (press.text == "q") quits_ = true;
  if (press.text == "x") return Ask(picture);
  if (!open_.empty()) {
    if (press.key != Key::kEscape && press.key != Key::kBackspace) return;
    open_.clear();
    return feed_.Open("");
  }
  const std::ptrdiff_t all = std::ssize(picture.state.active) + std::ssize(picture.state.ended);
  switch (press.key) {
    case Key::kUp:
      return Select(picture, -1);
    case Key::kDown:
      return Select(picture, 1);
    case Key::kPageUp:
      return Select(picture, -kPage);
    case Key::kPageDown:
      return Select(picture, kPage);
    case Key::kHome:
      return Select(picture, -all);
    case Key::kEnd:
      return Select(picture, all);
    case Key::kEscape:
      return choice_.filter.clear();
    case Key::kEnter:
      open_ = choice_.selected;
      return feed_.Open(open_);
    default:
      return PressInList(press.text, picture);
  }
}

void TopScreen::PressInList(const std::string& text, const Picture& picture) {
  if (text == "k") Select(picture, -1);
  if (text == "j") Select(picture, 1);
  if (text == "/") typing_ = true;
  if (text == "r") choice_.reversed = !choice_.reversed;
  if (text == "s") choice_.order = (choice_.order + 1) % kTopOrders.size();
}

void TopScreen::Type(const KeyPress& press) {
  std::string& filter = choice_.filter;
  if (press.key == Key::kEscape) filter.clear();
  if (press.key == Key::kEscape || press.key == Key::kEnter) typing_ = false;
  if (press.key == Key::kBackspace) {
    // A character of UTF-8 as a whole.
    while (!filter.empty() && (static_cast<unsigned char>(filter.back()) & 0xC0) == 0x80) {
      filter.pop_back();
    }
    if (!filter.empty()) filter.pop_back();
  }
  if (press.key == Key::kText) filter += press.text;
}

void TopScreen::Ask(const Picture& picture) {
  const std::string id = open_.empty() ? choice_.selected : open_;
  const auto& jobs = picture.state.active;
  const auto found = std::ranges::find(jobs, id, &v1::Job::id);
  if (found != jobs.end()) asked_ = *found;
}

void TopScreen::Answer(const std::string& text) {
  if (text == "y") feed_.Stop(*asked_);
  asked_.reset();
}

void TopScreen::Suspend() {
  session_.out() << kShowCursor << std::flush;
  keyboard_->Suspend();
  session_.out() << kHideCursor;
}

}  // namespace nsa::client
