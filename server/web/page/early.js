// Before everything else: the colours, so that the page does not flash in others, and the requests whose answers a job's page shows first. They are
// on their way while the modules are still read; get() of api.js takes the answers.
(() => {
  const saved = localStorage.getItem('theme');
  const dark = saved ? saved === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';

  window.early = new Map();
  const job = /^#\/job\/([^/?]+)/.exec(location.hash);
  const path = job && `api/v1/jobs/${encodeURIComponent(decodeURIComponent(job[1]))}`;
  for (const url of ['api/v1/quantities', ...(job ? [path, `${path}/events`, `${path}/curves?points=1024`] : [])]) {
    const answer = fetch(url);
    answer.catch(() => {});  // the code that takes it sees the error
    window.early.set(url, answer);
  }
})();
