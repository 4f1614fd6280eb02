"""How bin/lab sets up JupyterLab; whatever stands on the command line wins.

Nothing is fetched: no news, no list of extensions, no look for updates. A notebook is cleaned when it is saved, of what
only this machine knows, so that a diff shows what was edited.
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent

c = get_config()  # noqa: F821 - Jupyter reads this file with it
c.ServerApp.root_dir = str(HERE.parents[1])  # the checkout, so that links from a notebook to the docs work
c.FileContentsManager.preferred_dir = 'nbs'
c.LabApp.default_url = '/lab/tree/nbs/index.ipynb'
c.MultiKernelManager.default_kernel_name = 'merlin'
c.ContentsManager.pre_save_hook = 'nbdev.clean.clean_jupyter'
c.LabApp.app_settings_dir = str(HERE)  # overrides.json: nobody is asked whether to fetch news
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = 'jupyterlab.NeverCheckForUpdate'
c.LabApp.extension_manager = 'readonly'
