// Charts: an element with `data-chart` says where its numbers come from; a table beside it tells the same.
(() => {
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const made = [];
  const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 2 });
  const short = new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 });

  function options(element, lines, { bars, daily }) {
    const grid = { stroke: style("--line"), width: 1 };
    const axis = { stroke: style("--faint"), grid, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone: "UTC" });
    const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
    const told = daily ? day : clock;
    return {
      width: element.clientWidth,
      height: Number(element.dataset.height || 180),
      padding: [12, 22, 0, 0],
      cursor: { y: false, points: { size: 7 } },
      legend: { live: true },
      scales: { x: { time: true, range: (_, low, high) => (daily ? [low - 43200, high + 43200] : [Math.min(low, high - 120), high]) }, y: { range: (_, low, high) => [0, Math.max(high * 1.15, Number(element.dataset.least || 1))] } },
      axes: [
        { ...axis, size: 30, space: daily ? 60 : 75, grid: { show: false }, values: (_, ticks) => ticks.map((at) => told.format(at * 1000)) },
        { ...axis, size: 48, values: (_, ticks) => ticks.map((value) => short.format(value)) },
      ],
      series: [
        { label: daily ? "Day" : "Time", value: (_, at) => (at == null ? "–" : told.format(at * 1000)) },
        ...lines.map((line, n) => ({
          label: line.label,
          stroke: style(line.colour),
          fill: bars ? style(line.colour) : n ? undefined : style(line.colour) + "1f",
          width: bars ? 0 : 2,
          points: bars ? { show: false } : { size: 5 },
          spanGaps: false,
          value: (_, value) => (value == null ? "–" : number.format(value) + (line.unit || "")),
          ...(bars ? { paths: uPlot.paths.bars({ size: [0.6, 28], radius: 0.25 }) } : {}),
        })),
      ],
    };
  }

  function draw(element, lines, kind) {
    const chart = { element, lines, kind, data: null, plot: null };
    const build = () => {
      chart.plot?.destroy();
      chart.plot = chart.data && new uPlot(options(element, lines, kind), chart.data, element);
    };
    chart.show = (data) => {
      chart.data = data;
      if (chart.plot) chart.plot.setData(data);
      else build();
      // Once it is drawn: the latest numbers, until somebody points at others.
      setTimeout(() => chart.plot.cursor.idx == null && data[0].length && chart.plot.setLegend({ idx: data[0].length - 1 }), 50);
    };
    new ResizeObserver(() => chart.plot?.setSize({ width: element.clientWidth, height: chart.plot.height })).observe(element);
    document.addEventListener("memplane:theme", build);
    made.push(chart);
    return chart;
  }

  async function fetched(url) {
    const answer = await fetch(url, { headers: { Accept: "application/json" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload(); // signed out: the page leads to the form
    if (!answer.ok) throw new Error(String(answer.status));
    return answer.json();
  }

  function table(id, rows) {
    const body = document.querySelector(`#${id} tbody`);
    if (!body) return;
    body.replaceChildren(
      ...rows.map((cells) => {
        const row = document.createElement("tr");
        cells.forEach((cell, n) => {
          const made = document.createElement(n ? "td" : "th");
          if (!n) made.scope = "row";
          else made.className = "number";
          made.textContent = cell;
          row.append(made);
        });
        return row;
      }),
    );
  }

  // The installation, live.
  const live = document.querySelector("[data-live]");
  if (live) {
    const charts = {
      requests: draw(document.getElementById("chart-requests"), [
        { label: "Requests", colour: "--match" },
        { label: "Failed", colour: "--bad" },
      ], {}),
      time: draw(document.getElementById("chart-time"), [{ label: "Mean time", colour: "--importance", unit: " ms" }], {}),
      lag: draw(document.getElementById("chart-lag"), [{ label: "Oldest waits", colour: "--recency", unit: " s" }], {}),
      waiting: draw(document.getElementById("chart-waiting"), [
        { label: "Rows for the index", colour: "--priority" },
        { label: "Messages", colour: "--recency" },
      ], {}),
    };
    const seen = JSON.parse(sessionStorage.getItem("memplane-seen") || "[]").filter((its) => its[0] > Date.now() / 1000 - 900);
    const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });

    const look = async () => {
      if (document.hidden) return;
      let now;
      try {
        now = await fetched(live.dataset.live);
      } catch {
        live.dataset.state = "away";
        return;
      }
      delete live.dataset.state;
      seen.push([now.at, now.lag_s, now.pending, now.waiting]);
      while (seen.length > 180) seen.shift();
      sessionStorage.setItem("memplane-seen", JSON.stringify(seen));
      const beats = now.beats;
      charts.requests.show([beats.map((b) => b.at), beats.map((b) => b.requests), beats.map((b) => b.failed)]);
      charts.time.show([beats.map((b) => b.at), beats.map((b) => b.mean_ms)]);
      charts.lag.show([seen.map((s) => s[0]), seen.map((s) => s[1])]);
      charts.waiting.show([seen.map((s) => s[0]), seen.map((s) => s[2]), seen.map((s) => s[3])]);
      table("table-live", [...beats].reverse().slice(0, 12).map((b) => [
        clock.format(b.at * 1000), number.format(b.requests), number.format(b.failed), b.mean_ms == null ? "–" : `${number.format(b.mean_ms)} ms`,
      ]));
      const last = beats[beats.length - 1];
      const tell = { requests: last ? number.format(last.requests) : "–", lag: now.lag_s == null ? "–" : `${number.format(now.lag_s)} s`, pending: now.pending ?? "–", waiting: now.waiting, status: now.status };
      for (const [name, value] of Object.entries(tell)) {
        const element = live.querySelector(`[data-tell="${name}"]`);
        if (element) element.textContent = value;
      }
      live.querySelector("[data-tell=status]")?.setAttribute("data-status", now.status);
    };
    look();
    setInterval(look, 5000);
    document.addEventListener("visibilitychange", look);
  }

  // A tenant, day by day.
  const days = document.querySelector("[data-days]");
  if (days) {
    const requests = draw(document.getElementById("chart-days"), [
      { label: "Searches", colour: "--match" },
      { label: "Writes", colour: "--recency" },
    ], { daily: true });
    const tokens = draw(document.getElementById("chart-tokens"), [{ label: "Tokens", colour: "--importance" }], { bars: true, daily: true });
    fetched(days.dataset.days).then((rows) => {
      const at = rows.map((row) => Date.parse(row.day) / 1000);
      requests.show([at, rows.map((row) => row.searches), rows.map((row) => row.writes)]);
      tokens.show([at, rows.map((row) => row.tokens)]);
      const told = rows.filter((row) => row.searches || row.writes || row.tokens).reverse();
      table("table-days", told.map((row) => [row.day, number.format(row.searches), number.format(row.writes), number.format(row.tokens)]));
    }).catch(() => { days.dataset.state = "away"; });
  }
})();
